/* Clients that connect by TLS, one after the other in each of some threads, every one with a handshake of its own: none
 * takes up a session of another. Each asks for the API versions and waits for the answer, as a client knows no sooner
 * that the broker has completed the handshake, too.
 */
#include "load.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#define LEAST_ANSWER 10 /* correlation id, error code, the count of APIs */

struct connecting {
    pthread_t thread;
    SSL_CTX *context;
    pthread_barrier_t *ready;
    int port;
    long long count;
};

__attribute__((noreturn)) static void tls_failed(const char *what) {
    char text[256];
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    die("%s: %s", what, text);
}

static void read_all(SSL *ssl, char *bytes, size_t size) {
    for (size_t at = 0, n; at < size; at += n)
        if (SSL_read_ex(ssl, bytes + at, size - at, &n) != 1) tls_failed("no answer");
}

static void connect_once(SSL_CTX *context, int port) {
    static const char versions[] = {0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, (char)0xff, (char)0xff};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = FAIL_AFTER_S};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die("no connection");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    SSL *ssl = SSL_new(context);
    if (!ssl || !SSL_set_fd(ssl, fd) || !SSL_set1_host(ssl, "localhost")) tls_failed("no TLS");
    if (SSL_connect(ssl) != 1) tls_failed("no handshake");
    if (SSL_session_reused(ssl)) die("a session was taken up again");
    size_t written;
    if (SSL_write_ex(ssl, versions, sizeof versions, &written) != 1) tls_failed("nothing was sent");
    uint32_t length;
    read_all(ssl, (char *)&length, sizeof length);
    length = ntohl(length);
    if (length < LEAST_ANSWER || length > PAYLOAD_MAX) die("an answer of %u bytes", length);
    char *answer = malloc(length);
    read_all(ssl, answer, length);
    if (answer[3] != 1 || answer[4] || answer[5]) die("an answer with an error");
    free(answer);
    SSL_shutdown(ssl);
    SSL_free(ssl);
    close(fd);
}

static void *connect_each(void *opaque) {
    struct connecting *connecting = opaque;
    pthread_barrier_wait(connecting->ready);
    for (long long i = 0; i < connecting->count; i++) connect_once(connecting->context, connecting->port);
    return NULL;
}

int handshakes(int port, const char *authority, long long count, int at_once) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context || SSL_CTX_load_verify_locations(context, authority, NULL) != 1) tls_failed("no TLS");
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    struct connecting *connecting = calloc((size_t)at_once, sizeof *connecting);
    pthread_barrier_t ready;
    pthread_barrier_init(&ready, NULL, (unsigned)at_once + 1);
    for (int i = 0; i < at_once; i++) {
        connecting[i] = (struct connecting){.context = context, .ready = &ready, .port = port, .count = (count + i) / at_once};
        if (pthread_create(&connecting[i].thread, NULL, connect_each, &connecting[i])) die("no thread");
    }
    double cpu = cpu_s(), began = now_s();
    pthread_barrier_wait(&ready);
    for (int i = 0; i < at_once; i++) pthread_join(connecting[i].thread, NULL);
    printf("{\"handshakes\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.6f}\n", count, now_s() - began, cpu_s() - cpu);
    return 0;
}
