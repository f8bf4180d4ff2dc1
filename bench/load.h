/* What the modes of load have in common. */
#ifndef LOAD_H
#define LOAD_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define PAYLOAD_MAX (16 * 1024 * 1024)
#define FAIL_AFTER_S 60

int transactions(const char *bootstrap, const char *topic, double seconds, size_t size, long long most_records, double every_ms, int producers);
int repeat(int port, const char *name, double seconds, size_t at_once);
int handshakes(int port, const char *authority, long long count, int at_once);

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static inline double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

__attribute__((noreturn)) static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char text[256];
    if (rd_kafka_conf_set(conf, name, value, text, sizeof text) != RD_KAFKA_CONF_OK)
        die("%s=%s: %s", name, value, text);
}

/* Properties of the library may follow the address: `127.0.0.1:9093;security.protocol=ssl;ssl.ca.location=FILE`. */
static inline rd_kafka_t *client(rd_kafka_type_t type, rd_kafka_conf_t *conf, const char *bootstrap) {
    char text[256];
    char *own = strdup(bootstrap), *next = own;
    set(conf, "bootstrap.servers", strsep(&next, ";"));
    for (char *name; (name = strsep(&next, ";"));) {
        char *value = strchr(name, '=');
        if (!value) die("%s has no value", name);
        *value = '\0';
        set(conf, name, value + 1);
    }
    free(own);
    set(conf, "log_level", "0");
    rd_kafka_t *rk = rd_kafka_new(type, conf, text, sizeof text);
    if (!rk) die("rd_kafka_new: %s", text);
    return rk;
}

/* Incompressible enough, and the same in every run. */
static inline char *payload(size_t size) {
    if (size > PAYLOAD_MAX) die("payload of %zu bytes", size);
    char *bytes = malloc(size + 1);
    unsigned state = 12345;
    for (size_t i = 0; i < size; i++) {
        state = state * 1103515245u + 12345u;
        bytes[i] = (char)(state >> 16);
    }
    return bytes;
}

static inline long long end_offset(rd_kafka_t *rk, const char *topic, int32_t partition) {
    int64_t low, high;
    rd_kafka_resp_err_t err = rd_kafka_query_watermark_offsets(rk, topic, partition, &low, &high, FAIL_AFTER_S * 1000);
    if (err) die("end offset: %s", rd_kafka_err2str(err));
    return high;
}

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
