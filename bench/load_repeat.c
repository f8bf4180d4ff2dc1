/* Requests that were encoded before, each on a connection of its own, so many times at once, and again for each answer.
 * Who neither encodes nor decodes, and waits for all connections on one thread, is not the limit.
 *
 * The file has each request and then the answer that is expected every time, both with their lengths in front.
 */
#include "load.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>

#define CONNECTIONS_MAX 1000

struct frame {
    size_t size; /* with the length in front */
    char *bytes;
};

struct exchange {
    struct frame request, expected;
    char *requests, *answers; /* as many as are under way */
    size_t received;          /* of answers, not yet checked */
};

static int read_frame(FILE *file, struct frame *frame) {
    uint32_t length;
    if (fread(&length, sizeof length, 1, file) != 1) return 0;
    frame->size = sizeof length + ntohl(length);
    if (frame->size > PAYLOAD_MAX) die("a frame of %zu bytes", frame->size);
    frame->bytes = malloc(frame->size);
    memcpy(frame->bytes, &length, sizeof length);
    if (fread(frame->bytes + sizeof length, 1, frame->size - sizeof length, file) != frame->size - sizeof length) die("a frame is cut off");
    return 1;
}

static int connect_to(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die("no connection");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void ask(struct exchange *exchange, int fd, size_t times) {
    for (size_t sent = 0, size = exchange->request.size * times; sent < size;) {
        ssize_t n = write(fd, exchange->requests + sent, size - sent);
        if (n <= 0) die("the broker hung up");
        sent += (size_t)n;
    }
}

/* How many answers have come, all of which are the expected one. */
static size_t answered(struct exchange *exchange, int fd, size_t at_once) {
    size_t size = exchange->expected.size, complete = 0;
    ssize_t n = read(fd, exchange->answers + exchange->received, size * at_once - exchange->received);
    if (n <= 0) die("the broker hung up");
    exchange->received += (size_t)n;
    if (exchange->received >= sizeof(uint32_t) && memcmp(exchange->answers, exchange->expected.bytes, sizeof(uint32_t))) die("an answer has another size");
    for (; exchange->received >= size; exchange->received -= size, complete++)
        if (memcmp(exchange->answers + complete * size, exchange->expected.bytes, size)) die("an answer is another one");
    memmove(exchange->answers, exchange->answers + complete * size, exchange->received);
    return complete;
}

static void prepare(struct exchange *exchange, size_t at_once) {
    size_t size = exchange->request.size;
    exchange->requests = malloc(size * at_once);
    exchange->answers = malloc(exchange->expected.size * at_once);
    if (!exchange->requests || !exchange->answers) die("no memory");
    for (size_t i = 0; i < at_once; i++) memcpy(exchange->requests + i * size, exchange->request.bytes, size);
}

int repeat(int port, const char *name, double seconds, size_t at_once) {
    static struct exchange exchanges[CONNECTIONS_MAX];
    static struct pollfd polled[CONNECTIONS_MAX];
    FILE *file = fopen(name, "rb");
    if (!file) die("no file %s", name);
    nfds_t count = 0;
    while (count < CONNECTIONS_MAX && read_frame(file, &exchanges[count].request)) {
        if (!read_frame(file, &exchanges[count].expected)) die("a request without an answer");
        prepare(&exchanges[count], at_once);
        polled[count] = (struct pollfd){.fd = connect_to(port), .events = POLLIN};
        count++;
    }
    fclose(file);
    double cpu = cpu_s(), began = now_s(), until = began + seconds;
    long long requests = 0;
    size_t under_way = count * at_once;
    for (nfds_t i = 0; i < count; i++) ask(&exchanges[i], polled[i].fd, at_once);
    while (under_way) {
        if (poll(polled, count, FAIL_AFTER_S * 1000) <= 0) die("no answer for %d s", FAIL_AFTER_S);
        int goes_on = now_s() < until;
        for (nfds_t i = 0; i < count; i++) {
            if (!polled[i].revents) continue;
            size_t complete = answered(&exchanges[i], polled[i].fd, at_once);
            requests += (long long)complete;
            if (goes_on) ask(&exchanges[i], polled[i].fd, complete);
            else under_way -= complete;
        }
    }
    seconds = now_s() - began;
    printf("{\"requests\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.6f}\n", requests, seconds, cpu_s() - cpu);
    return 0;
}
