/* Transactions one after the other, by several producers. */
#include "load.h"

struct transactional {
    const char *bootstrap, *topic;
    char *bytes;
    size_t size;
    int32_t partition;
    long long most_records;
    double every_s, until;
    pthread_barrier_t *ready;
    rd_kafka_t *rk;
    rd_kafka_topic_t *rkt;
    long long records, commits, most_commits;
    double *took;
};

static void must(rd_kafka_error_t *error, const char *what) {
    if (error) die("%s: %s", what, rd_kafka_error_string(error));
}

static void on_transactional_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) die("a record was not taken: %s", rd_kafka_err2str(message->err));
}

/* The records of one transaction, until all of them are acknowledged. */
static long long fill(struct transactional *own, double until) {
    enum { AT_ONCE = 1000, MOST_QUEUED = 20000 };
    long long records = 0;
    while (own->most_records ? records < own->most_records : now_s() < until) {
        if (rd_kafka_outq_len(own->rk) > MOST_QUEUED) {
            rd_kafka_poll(own->rk, 1);
            continue;
        }
        rd_kafka_message_t messages[AT_ONCE];
        long long left = own->most_records ? own->most_records - records : AT_ONCE;
        int wanted = left < AT_ONCE ? (int)left : AT_ONCE;
        for (int m = 0; m < wanted; m++) messages[m] = (rd_kafka_message_t){.payload = own->bytes, .len = own->size};
        records += rd_kafka_produce_batch(own->rkt, own->partition, 0, messages, wanted);
        for (int m = 0; m < wanted; m++)
            if (messages[m].err && messages[m].err != RD_KAFKA_RESP_ERR__QUEUE_FULL) die("produce: %s", rd_kafka_err2str(messages[m].err));
        rd_kafka_poll(own->rk, 0);
    }
    if (rd_kafka_flush(own->rk, FAIL_AFTER_S * 1000)) die("no acknowledgement for %d s", FAIL_AFTER_S);
    return records;
}

/* One transaction, and how long its commit takes once the records are acknowledged. */
static void transact(struct transactional *own) {
    double end = now_s() + own->every_s;
    must(rd_kafka_begin_transaction(own->rk), "begin");
    own->records += fill(own, end);
    double began = now_s();
    must(rd_kafka_commit_transaction(own->rk, FAIL_AFTER_S * 1000), "commit");
    double now = now_s();
    if (own->commits == own->most_commits) {
        own->most_commits = own->most_commits * 2 + 1024;
        own->took = realloc(own->took, sizeof(double) * (size_t)own->most_commits);
        if (!own->took) die("no memory");
    }
    own->took[own->commits++] = now - began;
    if (now < end) usleep((useconds_t)((end - now) * 1e6));
}

static void *transact_all(void *opaque) {
    struct transactional *own = opaque;
    char id[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_transactional_delivery);
    set(conf, "delivery.report.only.error", "true");
    snprintf(id, sizeof id, "%s-%d", own->topic, own->partition);
    set(conf, "transactional.id", id);
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "1048576");
    set(conf, "batch.num.messages", "10000");
    set(conf, "linger.ms", "5");
    own->rk = client(RD_KAFKA_PRODUCER, conf, own->bootstrap);
    own->rkt = rd_kafka_topic_new(own->rk, own->topic, NULL);
    must(rd_kafka_init_transactions(own->rk, FAIL_AFTER_S * 1000), "init");
    transact(own); /* finds the leader; its time is not counted */
    pthread_barrier_wait(own->ready); /* all are connected */
    pthread_barrier_wait(own->ready); /* the clock runs */
    while (now_s() < own->until) transact(own);
    rd_kafka_topic_destroy(own->rkt);
    rd_kafka_destroy(own->rk);
    return NULL;
}

/* A marker stands behind the records of each transaction, a moment after its commit. */
static void await_end_offset(const char *bootstrap, const struct transactional *own) {
    rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), bootstrap);
    double began = now_s();
    long long end, expected = own->records + own->commits;
    while ((end = end_offset(rk, own->topic, own->partition)) != expected) {
        if (now_s() - began > FAIL_AFTER_S) die("%lld of %lld records and markers are in the log", end, expected);
        usleep(10000);
    }
    rd_kafka_destroy(rk);
}

int transactions(const char *bootstrap, const char *topic, double seconds, size_t size, long long most_records, double every_ms, int producers) {
    struct transactional *all = calloc((size_t)producers, sizeof *all);
    pthread_t *threads = calloc((size_t)producers, sizeof *threads);
    pthread_barrier_t ready;
    char *bytes = payload(size);
    pthread_barrier_init(&ready, NULL, (unsigned)producers + 1);
    for (int i = 0; i < producers; i++) {
        all[i] = (struct transactional){.bootstrap = bootstrap, .topic = topic, .bytes = bytes, .size = size, .partition = i, .most_records = most_records, .every_s = every_ms / 1e3, .ready = &ready};
        if (pthread_create(&threads[i], NULL, transact_all, &all[i])) die("no thread");
    }
    pthread_barrier_wait(&ready);
    double cpu = cpu_s(), began = now_s();
    long long records = 0, commits = 0;
    for (int i = 0; i < producers; i++) {
        all[i].until = began + seconds;
        records -= all[i].records;
    }
    pthread_barrier_wait(&ready);
    for (int i = 0; i < producers; i++) pthread_join(threads[i], NULL);
    seconds = now_s() - began;
    cpu = cpu_s() - cpu;
    double *took = NULL;
    for (int i = 0; i < producers; i++) {
        long long counted = all[i].commits - 1;
        await_end_offset(bootstrap, &all[i]);
        took = realloc(took, sizeof(double) * (size_t)(commits + counted + 1));
        if (!took) die("no memory");
        memcpy(took + commits, all[i].took + 1, sizeof(double) * (size_t)counted);
        commits += counted;
        records += all[i].records;
    }
    if (!commits) die("no transaction was committed");
    qsort(took, (size_t)commits, sizeof(double), compare_doubles);
    printf("{\"records\": %lld, \"bytes\": %lld, \"commits\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.6f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n",
           records, records * (long long)size, commits, seconds, cpu, took[commits / 2] * 1e3, took[commits * 99 / 100] * 1e3);
    return 0;
}
