/* load: the peak-rate client of bench/run, on librdkafka's C API. A load tool in Python would measure itself.
 *
 *   load produce   BOOTSTRAP TOPIC RECORDS BYTES ACKS    batched, as fast as the broker takes it
 *   load keyed     BOOTSTRAP TOPIC RECORDS BYTES KEYS    as produce with acks=1, BYTES with a key of 12, by chance among so many
 *   load unbatched BOOTSTRAP TOPIC RECORDS BYTES ACKS    one record a request, pipelined
 *   load consume   BOOTSTRAP TOPIC RECORDS               one partition from its beginning
 *   load latency   BOOTSTRAP TOPIC RECORDS RATE [ACKS [OUT]]  RATE records a second, produced and consumed by this process;
 *                                                        consumed from OUT, when something copies TOPIC there
 *   load stall     BOOTSTRAP TOPIC SECONDS               a record a millisecond, acks=all; the longest time without an acknowledgement
 *   load first     BOOTSTRAP TOPIC                       one record, as soon as a broker takes it, acks=all
 *   load waiting   BOOTSTRAP TOPIC SECONDS BYTES PRODUCERS  so many producers, each with one record under way at a time, acks=1
 *   load transactions BOOTSTRAP TOPIC SECONDS BYTES RECORDS EVERY PRODUCERS   each producer, in a partition of its own, ends a
 *                                                        transaction after RECORDS (0: as many as it can) and EVERY milliseconds
 *   load repeat    PORT FILE SECONDS COUNT               the requests in a file, again and again, so many at once (load_repeat.c)
 *   load handshakes PORT CA COUNT AT_ONCE                clients that connect by TLS, so many at once (load_tls.c)
 *   load create    BOOTSTRAP TOPIC PARTITIONS [NAME=VALUE]  a topic, until every partition has a leader
 *   load delete    BOOTSTRAP TOPIC
 *
 * BOOTSTRAP may have properties of librdkafka behind it, each after a `;`. TOPIC may name a partition, as in `flights/1`; without one it is partition 0.
 * Prints one JSON object: what was done, the seconds it took, and this process's own CPU seconds (user + system).
 * Exit code 1, with a line on standard error, when anything failed: a figure from a failed run is no figure.
 */
#include "load.h"

#include <malloc.h>

#define CREATED_AFTER_S 1800

static long long delivered, failed;
static int32_t partition;
static char error_text[512];

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) {
        failed++;
        snprintf(error_text, sizeof error_text, "%s", rd_kafka_err2str(message->err));
    } else {
        delivered++;
    }
}

struct producer {
    rd_kafka_t *rk;
    rd_kafka_topic_t *rkt;
};

static struct producer producer(const char *bootstrap, const char *topic, const char *acks, int batched) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    set(conf, "delivery.report.only.error", "true");
    set(conf, "acks", acks);
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "1048576");
    set(conf, "batch.num.messages", batched ? "10000" : "1");
    set(conf, "linger.ms", batched ? "5" : "0");
    set(conf, "message.max.bytes", "1000000");
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, conf, bootstrap);
    return (struct producer){rk, rd_kafka_topic_new(rk, topic, NULL)};
}

/* Made so that the client is not the limit sooner than it must: records are handed over by the thousand, and only failures
 * come back one by one. That all of them arrived, the log's end offset says. A producer sends to one broker from one thread,
 * and of batches one such thread makes fewer than a broker takes: batches come from two producers. */
static int produce(const char *bootstrap, const char *topic, long long records, size_t size, const char *acks, int batched, long long keys) {
    enum { KEY_SIZE = 12, AT_ONCE = 1000, MOST_QUEUED = 150000, LEAST_QUEUED = 50000, PRODUCERS = 2 };
    struct producer producers[PRODUCERS];
    int count = batched ? PRODUCERS : 1;
    static char names[AT_ONCE][24];
    unsigned long long chance = 12345;
    if (keys) size -= KEY_SIZE;
    char *bytes = payload(size);

    /* The first record finds the leader; the clock starts after it. The payload outlives every record: nothing is copied. */
    for (int i = 0; i < count; i++) {
        producers[i] = producer(bootstrap, topic, acks, batched);
        if (rd_kafka_produce(producers[i].rkt, partition, 0, bytes, size, keys ? "first" : NULL, keys ? 5 : 0, NULL)) die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
        if (rd_kafka_flush(producers[i].rk, FAIL_AFTER_S * 1000) || failed) die("the first record was not taken: %s", error_text);
    }
    long long before = end_offset(producers[0].rk, topic, partition);

    double cpu = cpu_s(), began = now_s();
    for (long long sent = 0; sent < records;) {
        int full = 0;
        for (int i = 0; i < count && sent < records; i++) {
            if (rd_kafka_outq_len(producers[i].rk) > MOST_QUEUED) {
                full++;
                continue;
            }
            rd_kafka_message_t messages[AT_ONCE];
            int wanted = records - sent < AT_ONCE ? (int)(records - sent) : AT_ONCE;
            for (int m = 0; m < wanted; m++) {
                messages[m] = (rd_kafka_message_t){.payload = bytes, .len = size};
                if (!keys) continue;
                chance = chance * 6364136223846793005ull + 1442695040888963407ull;
                snprintf(names[m], sizeof names[m], "%012llu", (chance >> 33) % (unsigned long long)keys);
                messages[m].key = names[m];
                messages[m].key_len = KEY_SIZE;
            }
            int taken = rd_kafka_produce_batch(producers[i].rkt, partition, 0, messages, wanted);
            /* Those not taken find the queue full; they are made anew in the next round. */
            for (int m = 0; m < wanted; m++)
                if (messages[m].err && messages[m].err != RD_KAFKA_RESP_ERR__QUEUE_FULL) die("produce: %s", rd_kafka_err2str(messages[m].err));
            sent += taken;
            rd_kafka_poll(producers[i].rk, taken == wanted ? 0 : 10);
        }
        /* Handing over and sending wait for each other's locks when they go on at once; so they take turns. */
        while (full == count) {
            usleep(1000);
            for (int i = 0; i < count; i++)
                if (rd_kafka_outq_len(producers[i].rk) < LEAST_QUEUED) full = 0;
        }
    }
    for (int i = 0; i < count; i++)
        if (rd_kafka_flush(producers[i].rk, FAIL_AFTER_S * 1000)) failed++;
    double seconds = now_s() - began;
    cpu = cpu_s() - cpu;
    long long end = end_offset(producers[0].rk, topic, partition), taken = end - before;
    if (failed || taken != records) die("%lld of %lld records are in the log, %lld failed: %s", taken, records, failed, error_text);
    printf("{\"records\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.6f, \"end_offset\": %lld}\n", records, records * (long long)size, seconds, cpu, end);
    for (int i = 0; i < count; i++) {
        rd_kafka_topic_destroy(producers[i].rkt);
        rd_kafka_destroy(producers[i].rk);
    }
    return 0;
}

struct waiting {
    const char *bootstrap, *topic, *bytes;
    size_t size;
    pthread_barrier_t *ready;
    double until;
    long long delivered;
    int done;
    rd_kafka_resp_err_t err;
};

static void on_awaited(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk;
    struct waiting *waiting = opaque;
    waiting->err = message->err;
    waiting->done = 1;
}

static void send_and_wait(struct waiting *waiting, rd_kafka_t *rk, rd_kafka_topic_t *rkt) {
    double began = now_s();
    waiting->done = 0;
    if (rd_kafka_produce(rkt, partition, 0, (void *)waiting->bytes, waiting->size, NULL, 0, NULL)) die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
    while (!waiting->done) {
        rd_kafka_poll(rk, 1000);
        if (now_s() - began > FAIL_AFTER_S) die("no acknowledgement for %d s", FAIL_AFTER_S);
    }
    if (waiting->err) die("not taken: %s", rd_kafka_err2str(waiting->err));
}

static void *wait_for_each(void *opaque) {
    struct waiting *waiting = opaque;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_awaited);
    rd_kafka_conf_set_opaque(conf, waiting);
    set(conf, "acks", "1");
    set(conf, "linger.ms", "0");
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, conf, waiting->bootstrap);
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, waiting->topic, NULL);
    send_and_wait(waiting, rk, rkt); /* finds the leader, and is not counted */
    pthread_barrier_wait(waiting->ready); /* all are connected */
    pthread_barrier_wait(waiting->ready); /* the clock runs */
    while (now_s() < waiting->until) {
        send_and_wait(waiting, rk, rkt);
        waiting->delivered++;
    }
    rd_kafka_topic_destroy(rkt);
    rd_kafka_destroy(rk);
    return NULL;
}

/* What producers get done that send a record only when the one before is acknowledged. */
static int wait_for_all(const char *bootstrap, const char *topic, double seconds, size_t size, int producers) {
    struct waiting *waiting = calloc((size_t)producers, sizeof *waiting);
    pthread_t *threads = calloc((size_t)producers, sizeof *threads);
    pthread_barrier_t ready;
    char *bytes = payload(size);
    pthread_barrier_init(&ready, NULL, (unsigned)producers + 1);
    for (int i = 0; i < producers; i++) {
        waiting[i] = (struct waiting){.bootstrap = bootstrap, .topic = topic, .bytes = bytes, .size = size, .ready = &ready};
        if (pthread_create(&threads[i], NULL, wait_for_each, &waiting[i])) die("no thread");
    }
    pthread_barrier_wait(&ready);
    double cpu = cpu_s(), began = now_s();
    for (int i = 0; i < producers; i++) waiting[i].until = began + seconds;
    pthread_barrier_wait(&ready);
    long long records = 0;
    for (int i = 0; i < producers; i++) {
        pthread_join(threads[i], NULL);
        records += waiting[i].delivered;
    }
    seconds = now_s() - began;
    cpu = cpu_s() - cpu;
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), bootstrap);
    long long taken = end_offset(rk, topic, partition) - producers;
    if (taken != records) die("%lld records were acknowledged, %lld are in the log", records, taken);
    printf("{\"records\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.6f}\n", records, records * (long long)size, seconds, cpu);
    rd_kafka_destroy(rk);
    return 0;
}

static rd_kafka_t *consumer(const char *bootstrap, const char *topic, int64_t offset, int connection_only) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "group.id", "bench");
    set(conf, "enable.auto.commit", "false");
    set(conf, "enable.auto.offset.store", "false");
    set(conf, "check.crcs", "false");
    if (!connection_only) {
        set(conf, "queued.min.messages", "1000000");
        set(conf, "queued.max.messages.kbytes", "262144");
    }
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, conf, bootstrap);
    rd_kafka_poll_set_consumer(rk);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, partition)->offset = offset;
    rd_kafka_resp_err_t err = rd_kafka_assign(rk, list);
    if (err) die("assign: %s", rd_kafka_err2str(err));
    rd_kafka_topic_partition_list_destroy(list);
    return rk;
}

static int consume(const char *bootstrap, const char *topic, long long records) {
    enum { AT_ONCE = 10000 };
    static rd_kafka_message_t *messages[AT_ONCE];
    rd_kafka_t *rk = consumer(bootstrap, topic, RD_KAFKA_OFFSET_BEGINNING, 0);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(rk);
    long long seen = 0, bytes = 0;
    double cpu = 0, began = 0, last = now_s();
    while (seen < records) {
        ssize_t n = rd_kafka_consume_batch_queue(queue, 100, messages, AT_ONCE);
        if (n > 0) last = now_s();
        if (now_s() - last > FAIL_AFTER_S) die("nothing for %d s after %lld records", FAIL_AFTER_S, seen);
        for (ssize_t i = 0; i < n; i++) {
            if (messages[i]->err) die("consume: %s", rd_kafka_message_errstr(messages[i]));
            /* The clock starts with the first record: what came before it is connecting. */
            if (seen == 0) { began = now_s(); cpu = cpu_s(); }
            seen++;
            bytes += (long long)messages[i]->len;
            rd_kafka_message_destroy(messages[i]);
        }
    }
    double seconds = now_s() - began;
    cpu = cpu_s() - cpu;
    printf("{\"records\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.6f}\n", seen, bytes, seconds, cpu);
    rd_kafka_queue_destroy(queue);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
    return 0;
}

struct pace {
    rd_kafka_t *producer;
    rd_kafka_topic_t *topic;
    long long records;
    double rate, began;
};

/* By the clock, not by what came back: a broker that stalls must not slow the load down (coordinated omission). */
static void *send_paced(void *opaque) {
    struct pace *pace = opaque;
    char *bytes = payload(100);
    for (long long sent = 0; sent < pace->records; sent++) {
        double due = pace->began + sent / pace->rate, wait = due - now_s();
        if (wait > 0) {
            struct timespec t = {(time_t)wait, (long)((wait - (time_t)wait) * 1e9)};
            nanosleep(&t, NULL);
        }
        memcpy(bytes, &due, sizeof due);
        if (rd_kafka_produce(pace->topic, partition, RD_KAFKA_MSG_F_COPY, bytes, 100, NULL, 0, NULL)) die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
        if (sent % 16 == 0) rd_kafka_poll(pace->producer, 0);
    }
    rd_kafka_flush(pace->producer, FAIL_AFTER_S * 1000);
    free(bytes);
    return NULL;
}

static int latency(const char *bootstrap, const char *topic, long long records, double rate, const char *acks, const char *out) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    set(conf, "acks", acks);
    set(conf, "linger.ms", "0");
    set(conf, "socket.nagle.disable", "true");
    rd_kafka_t *producer = client(RD_KAFKA_PRODUCER, conf, bootstrap);
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(producer, topic, NULL);
    double *taken = malloc(sizeof(double) * (size_t)records);

    /* The first record makes the topic known to both, and is not counted. */
    rd_kafka_produce(rkt, partition, RD_KAFKA_MSG_F_COPY, "first", 5, NULL, 0, NULL);
    if (rd_kafka_flush(producer, FAIL_AFTER_S * 1000) || failed) die("the first record was not taken: %s", error_text);
    rd_kafka_t *rk = consumer(bootstrap, out, RD_KAFKA_OFFSET_BEGINNING, 1);
    rd_kafka_message_t *message = NULL;
    double waiting = now_s();
    while (!(message = rd_kafka_consumer_poll(rk, 100)) && now_s() - waiting < FAIL_AFTER_S) {}
    if (!message || message->err) die("the first record was not read");
    rd_kafka_message_destroy(message);

    struct pace pace = {producer, rkt, records, rate, now_s() + 0.01};
    double cpu = cpu_s();
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_paced, &pace)) die("no thread");
    long long seen = 0, counted = 0, warm_up = records / 10;
    while (seen < records) {
        message = rd_kafka_consumer_poll(rk, 1000);
        double now = now_s();
        if (!message) {
            if (now - pace.began > records / rate + FAIL_AFTER_S) die("%lld of %lld records came back", seen, records);
            continue;
        }
        if (message->err) die("consume: %s", rd_kafka_message_errstr(message));
        double due;
        memcpy(&due, message->payload, sizeof due);
        if (seen++ >= warm_up) taken[counted++] = now - due;
        rd_kafka_message_destroy(message);
    }
    double seconds = now_s() - pace.began;
    pthread_join(sender, NULL);
    cpu = cpu_s() - cpu;
    if (failed) die("%lld records failed: %s", failed, error_text);
    qsort(taken, (size_t)counted, sizeof(double), compare_doubles);
    printf("{\"records\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.6f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f}\n",
           records, records * 100, seconds, cpu, taken[counted / 2] * 1e3, taken[counted * 99 / 100] * 1e3, taken[counted * 999 / 1000] * 1e3);
    rd_kafka_topic_destroy(rkt);
    rd_kafka_destroy(producer);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
    return 0;
}

/* The end of the longest time without an acknowledgement, by the clock of the wall, and its length. */
static double stalled_s, stalled_until, last_ack;

static double wall_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void on_timed_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    double now = wall_s();
    on_delivery(rk, message, opaque);
    if (message->err) return;
    if (last_ack && now - last_ack > stalled_s) {
        stalled_s = now - last_ack;
        stalled_until = now;
    }
    last_ack = now;
}

static int stall(const char *bootstrap, const char *topic, double seconds) {
    enum { MOST_QUEUED = 50000 };
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_timed_delivery);
    set(conf, "enable.idempotence", "true");
    set(conf, "linger.ms", "0");
    /* Whoever waits long before he tries again measures himself. */
    set(conf, "retry.backoff.ms", "10");
    set(conf, "reconnect.backoff.ms", "10");
    set(conf, "reconnect.backoff.max.ms", "20");
    set(conf, "topic.metadata.refresh.fast.interval.ms", "20");
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, conf, bootstrap);
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    char *bytes = payload(100);
    double began = now_s();
    long long sent = 0;
    for (double due = began; due < began + seconds; due += 0.001) {
        while (now_s() < due) rd_kafka_poll(rk, 1);
        if (rd_kafka_outq_len(rk) >= MOST_QUEUED) continue;
        if (rd_kafka_produce(rkt, partition, 0, bytes, 100, NULL, 0, NULL)) die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
        sent++;
    }
    if (rd_kafka_flush(rk, FAIL_AFTER_S * 1000) || failed || delivered != sent) die("%lld of %lld records were acknowledged: %s", delivered, sent, error_text);
    printf("{\"records\": %lld, \"stalled_s\": %.6f, \"stalled_until\": %.6f}\n", sent, stalled_s, stalled_until);
    fflush(stdout);
    _exit(0);
}

static int leaders(rd_kafka_t *rk, rd_kafka_topic_t *rkt, int timeout_ms) {
    const rd_kafka_metadata_t *metadata;
    int led = 0;
    if (rd_kafka_metadata(rk, 0, rkt, &metadata, timeout_ms)) return 0;
    for (int t = 0; t < metadata->topic_cnt; t++)
        for (int p = 0; p < metadata->topics[t].partition_cnt; p++) led += metadata->topics[t].partitions[p].leader >= 0;
    rd_kafka_metadata_destroy(metadata);
    return led;
}

static int first(const char *bootstrap, const char *topic) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    set(conf, "acks", "all");
    set(conf, "linger.ms", "0");
    set(conf, "reconnect.backoff.ms", "5");
    set(conf, "reconnect.backoff.max.ms", "5");
    double began = now_s();
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, conf, bootstrap);
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    /* Asked for again and again: left to itself the library looks at topics without a leader once a second. */
    while (!leaders(rk, rkt, 20)) {
        if (now_s() - began > FAIL_AFTER_S) die("no leader");
        usleep(2000);
    }
    if (rd_kafka_produce(rkt, partition, RD_KAFKA_MSG_F_COPY, "first", 5, NULL, 0, NULL)) die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
    while (!delivered && !failed && now_s() - began < FAIL_AFTER_S) rd_kafka_poll(rk, 1);
    if (!delivered) die("no acknowledgement: %s", error_text);
    printf("{\"seconds\": %.6f}\n", now_s() - began);
    fflush(stdout);
    _exit(0);
}

static int create(const char *bootstrap, const char *topic, int partitions, char *config) {
    char text[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "allow.auto.create.topics", "false");
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, conf, bootstrap);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    rd_kafka_NewTopic_t *topics[] = {rd_kafka_NewTopic_new(topic, partitions, -1 /* default.replication.factor */, text, sizeof text)};
    if (!topics[0]) die("create: %s", text);
    if (config) {
        char *value = strchr(config, '=');
        if (!value) die("create: %s has no value", config);
        *value = '\0';
        if (rd_kafka_NewTopic_set_config(topics[0], config, value + 1)) die("create: %s", config);
    }
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(rk, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    rd_kafka_AdminOptions_set_request_timeout(options, 300000, text, sizeof text);
    rd_kafka_AdminOptions_set_operation_timeout(options, 290000, text, sizeof text);
    double cpu = cpu_s(), began = now_s();
    rd_kafka_CreateTopics(rk, topics, 1, options, queue);
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, 310000);
    if (!event) die("create: no answer");
    const rd_kafka_CreateTopics_result_t *result = rd_kafka_event_CreateTopics_result(event);
    if (!result) die("create: %s", rd_kafka_event_error_string(event));
    size_t count;
    const rd_kafka_topic_result_t **answers = rd_kafka_CreateTopics_result_topics(result, &count);
    if (!count) die("create: %s", rd_kafka_event_error_string(event));
    rd_kafka_resp_err_t err = rd_kafka_topic_result_error(answers[0]);
    if (err && err != RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT) die("create: %s", rd_kafka_err2str(err));
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    while (leaders(rk, rkt, 30000) < partitions) {
        if (now_s() - began > CREATED_AFTER_S) die("not every partition has a leader after %d s", CREATED_AFTER_S);
        usleep(50000);
    }
    printf("{\"partitions\": %d, \"seconds\": %.6f, \"client_cpu_s\": %.6f}\n", partitions, now_s() - began, cpu_s() - cpu);
    fflush(stdout);
    _exit(0);
}

static int delete(const char *bootstrap, const char *topic) {
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), bootstrap);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    rd_kafka_DeleteTopic_t *topics[] = {rd_kafka_DeleteTopic_new(topic)};
    rd_kafka_DeleteTopics(rk, topics, 1, NULL, queue);
    rd_kafka_event_t *event = rd_kafka_queue_poll(queue, FAIL_AFTER_S * 1000);
    const rd_kafka_DeleteTopics_result_t *result = event ? rd_kafka_event_DeleteTopics_result(event) : NULL;
    if (!result) die("delete: no answer");
    size_t count;
    rd_kafka_resp_err_t err = rd_kafka_topic_result_error(rd_kafka_DeleteTopics_result_topics(result, &count)[0]);
    if (err) die("delete: %s", rd_kafka_err2str(err));
    printf("{}\n");
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv) {
    /* The library's batches stay on the heap: mapping and clearing a megabyte for each is not what is to be measured. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "repeat") && argc == 6) return repeat(atoi(argv[2]), argv[3], atof(argv[4]), (size_t)atoll(argv[5]));
    if (!strcmp(mode, "handshakes") && argc == 6) return handshakes(atoi(argv[2]), argv[3], atoll(argv[4]), atoi(argv[5]));
    char *slash = argc > 3 ? strchr(argv[3], '/') : NULL;
    if (slash) {
        *slash = '\0';
        partition = atoi(slash + 1);
    }
    if (!strcmp(mode, "produce") && argc == 7) return produce(argv[2], argv[3], atoll(argv[4]), (size_t)atoll(argv[5]), argv[6], 1, 0);
    if (!strcmp(mode, "keyed") && argc == 7) return produce(argv[2], argv[3], atoll(argv[4]), (size_t)atoll(argv[5]), "1", 1, atoll(argv[6]));
    if (!strcmp(mode, "unbatched") && argc == 7) return produce(argv[2], argv[3], atoll(argv[4]), (size_t)atoll(argv[5]), argv[6], 0, 0);
    if (!strcmp(mode, "consume") && argc == 5) return consume(argv[2], argv[3], atoll(argv[4]));
    if (!strcmp(mode, "latency") && argc >= 6 && argc <= 8)
        return latency(argv[2], argv[3], atoll(argv[4]), atof(argv[5]), argc > 6 ? argv[6] : "1", argc > 7 ? argv[7] : argv[3]);
    if (!strcmp(mode, "stall") && argc == 5) return stall(argv[2], argv[3], atof(argv[4]));
    if (!strcmp(mode, "first") && argc == 4) return first(argv[2], argv[3]);
    if (!strcmp(mode, "waiting") && argc == 7) return wait_for_all(argv[2], argv[3], atof(argv[4]), (size_t)atoll(argv[5]), atoi(argv[6]));
    if (!strcmp(mode, "transactions") && argc == 9)
        return transactions(argv[2], argv[3], atof(argv[4]), (size_t)atoll(argv[5]), atoll(argv[6]), atof(argv[7]), atoi(argv[8]));
    if (!strcmp(mode, "create") && (argc == 5 || argc == 6)) return create(argv[2], argv[3], atoi(argv[4]), argc == 6 ? argv[5] : NULL);
    if (!strcmp(mode, "delete") && argc == 4) return delete(argv[2], argv[3]);
    die("usage: load produce|keyed|unbatched|consume|latency|stall|waiting|transactions|first|create|delete BOOTSTRAP TOPIC ...");
    return 1;
}
