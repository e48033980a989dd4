/* Load generator: decides how many whole answers or stream events one endpoint gives in a fixed time, from one thread (epoll).
 *
 * usage: load PORT CONNECTIONS MILLISECONDS BODY_BYTES CHUNKS PACE_US [TEXT]
 *   Requests take turns among 16 that differ in text and length. Their prompts are words, or pieces of the file TEXT.
 *   CHUNKS 0: plain chat requests, closed loop on keep-alive connections (one request in flight on each).
 *   CHUNKS n: streams of n events; PACE_US > 0 asks the mock engine for paced events and starts the streams spread over one pace,
 *             so that events do not come in step.
 * Prints one JSON line: answers, events, bad (status not 200), lost (connection broke inside an answer), reconnects, seconds, p50_us, p99_us.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Waits for events. With BENCH_AWAKE it never sleeps: waking a process on an idle core costs the proxy that writes to it
   up to 5 us, which one that keeps that core busy does not pay. */
static int wait_for_events(int ep, struct epoll_event *events, int most, int wait_ms) {
    static int awake = -1;
    if (awake < 0) awake = getenv("BENCH_AWAKE") != NULL;
    if (!awake) return epoll_wait(ep, events, most, wait_ms);
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (;;) {
        int n = epoll_wait(ep, events, most, 0);
        if (n || wait_ms == 0) return n;
        clock_gettime(CLOCK_MONOTONIC, &now);
        long passed_ms = (now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000;
        if (wait_ms > 0 && passed_ms >= wait_ms) return 0;
        sched_yield();
    }
}

enum { MAX_CONNS = 8192, HEAD_SIZE = 8192, READ_SIZE = 65536, MAX_EVENTS = 512, MAX_LATENCIES = 4 << 20, MAX_RECONNECTS = 100000, VARIANTS = 16, TEXT_SIZE = 4 << 20 };
enum phase { SENDING, HEAD, FIXED, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };

struct conn {
    int fd;
    enum phase phase;
    size_t sent, head_len;
    long left;               /* bytes left of the body or of the chunk */
    int close_after, newline, line_len, last_chunk, want_out, waiting;
    long started_ns;
    int variant;
    char head[HEAD_SIZE];
};

static struct conn *conns;
static char *requests[VARIANTS];
static size_t request_lens[VARIANTS];
static char text[TEXT_SIZE] = "token ";
static size_t text_len = 6;
static int ep, port;
static long answers, events_seen, bad, lost, reconnects;
static unsigned *latencies;
static long latency_count;

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void watch(struct conn *c, int op, int out) {
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.u32 = (unsigned)(c - conns)};
    c->want_out = out;
    epoll_ctl(ep, op, c->fd, &e);
}

static void open_conn(struct conn *c) {
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->fd < 0 || (connect(c->fd, (void *)&to, sizeof to) && errno != EINPROGRESS)) { perror("load: connect"); exit(1); }
    c->phase = SENDING;
    c->sent = c->head_len = 0;
    c->started_ns = now_ns();
    watch(c, EPOLL_CTL_ADD, 1);
}

static void reopen(struct conn *c) {
    close(c->fd);
    if (++reconnects > MAX_RECONNECTS) { fprintf(stderr, "load: the endpoint keeps closing connections\n"); exit(1); }
    open_conn(c);
}

static int send_request(struct conn *c) {
    size_t request_len = request_lens[c->variant];
    ssize_t n = send(c->fd, requests[c->variant] + c->sent, request_len - c->sent, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == ENOTCONN;
    c->sent += n;
    int more = c->sent < request_len;
    if (!more) c->phase = HEAD, c->head_len = 0;
    if (more != c->want_out) watch(c, EPOLL_CTL_MOD, more);
    return 1;
}

static int finish(struct conn *c) {
    answers++;
    if (latency_count < MAX_LATENCIES) latencies[latency_count++] = (unsigned)((now_ns() - c->started_ns) / 100);
    if (c->close_after) return reopen(c), 1;
    c->phase = SENDING;
    c->sent = 0;
    c->variant = (c->variant + 1) % VARIANTS;
    c->started_ns = now_ns();
    return send_request(c);
}

static void count_events(struct conn *c, const char *p, size_t n) {
    for (const char *end = p + n; p < end;) { /* an event ends with an empty line; the mock writes it as \n\n */
        const char *hit = memchr(p, '\n', end - p);
        if (!hit) { c->newline = 0; return; }
        if (hit != p) c->newline = 0;
        if (c->newline) events_seen++, c->newline = 0; else c->newline = 1;
        p = hit + 1;
    }
}

/* The head is whole: how the body ends. */
static void begin_body(struct conn *c) {
    c->head[c->head_len] = 0;
    if (strncmp(c->head + 8, " 200", 4)) bad++;
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->close_after = strcasestr(c->head, "\r\nconnection: close") != NULL;
    c->newline = c->line_len = 0;
    if (length) c->phase = FIXED, c->left = atol(length + 17);
    else c->phase = CHUNK_SIZE, c->left = 0;
}

static int parse(struct conn *c, const char *p, size_t n) {
    const char *end = p + n;
    while (p < end || (c->phase == FIXED && !c->left)) {
        size_t take;
        switch (c->phase) {
        case SENDING: /* an answer before the request was whole: a refusal such as 413 */
        case HEAD: {
            take = end - p;
            if (take > HEAD_SIZE - 1 - c->head_len) take = HEAD_SIZE - 1 - c->head_len;
            if (!take) return 0;
            size_t scan_from = c->head_len > 3 ? c->head_len - 3 : 0;
            memcpy(c->head + c->head_len, p, take);
            char *stop = memmem(c->head + scan_from, c->head_len + take - scan_from, "\r\n\r\n", 4);
            if (!stop) { c->head_len += take; p += take; break; }
            size_t whole = stop + 4 - c->head;
            p += whole - c->head_len;
            c->head_len = whole;
            begin_body(c);
            break;
        }
        case FIXED:
        case CHUNK_DATA:
            take = (size_t)c->left < (size_t)(end - p) ? (size_t)c->left : (size_t)(end - p);
            if (c->phase == CHUNK_DATA) count_events(c, p, take);
            p += take;
            c->left -= take;
            if (c->left) break;
            if (c->phase == FIXED) { if (!finish(c)) return 0; if (p < end) return 0; return 1; }
            c->phase = CHUNK_END;
            break;
        case CHUNK_SIZE:
            if (*p == '\n') c->last_chunk = !c->left, c->line_len = 0, c->phase = c->left ? CHUNK_DATA : TRAILER;
            else if (*p != '\r') c->left = c->left * 16 + (*p <= '9' ? *p - '0' : (*p | 32) - 'a' + 10);
            p++;
            break;
        case CHUNK_END:
            if (*p++ == '\n') c->phase = CHUNK_SIZE, c->left = 0;
            break;
        case TRAILER:
            if (*p == '\n') {
                if (!c->line_len) { if (!finish(c)) return 0; return p + 1 == end; }
                c->line_len = 0;
            } else if (*p != '\r') c->line_len++;
            p++;
            break;
        }
    }
    return 1;
}

static int by_value(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}

static void build_request(int variant, long body_bytes, long chunks, long pace_us) {
    char *request = requests[variant] = malloc(body_bytes + 2048);
    char *body = malloc(body_bytes + 1024);
    size_t at = text_len / VARIANTS * variant;
    int n = sprintf(body, "{\"model\":\"mock\",\"max_tokens\":%ld,%s\"messages\":[{\"role\":\"user\",\"content\":\"",
                    chunks ? chunks : 16, chunks ? "\"stream\":true," : "");
    while (n < body_bytes - 4) body[n++] = text[at++ % text_len];
    n += sprintf(body + n, "\"}]}");
    size_t request_len = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                                   "Content-Length: %d\r\nx-mock-chunks: %ld\r\nx-mock-pace-us: %ld\r\n\r\n", port, n, chunks, pace_us);
    memcpy(request + request_len, body, n);
    request_lens[variant] = request_len + n;
    free(body);
}

/* Plain ASCII of the file, so that it may stand in a JSON string as it is. */
static void read_text(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) { perror(path); exit(2); }
    text_len = 0;
    for (int c; text_len < TEXT_SIZE && (c = getc(file)) != EOF;)
        if (c < 128) text[text_len++] = c < 32 || c == '"' || c == '\\' ? ' ' : c;
    fclose(file);
    if (!text_len) { fprintf(stderr, "%s is empty\n", path); exit(2); }
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 8) return fprintf(stderr, "usage: load PORT CONNECTIONS MILLISECONDS BODY_BYTES CHUNKS PACE_US [TEXT]\n"), 2;
    port = atoi(argv[1]);
    long count = atol(argv[2]), run_ms = atol(argv[3]), chunks = atol(argv[5]), pace_us = atol(argv[6]);
    if (count < 1 || count > MAX_CONNS || run_ms < 1 || run_ms > 600000) return fprintf(stderr, "load: 1-%d connections, 1-600000 ms\n", MAX_CONNS), 2;
    if (argc == 8) read_text(argv[7]);
    for (int variant = 0; variant < VARIANTS; variant++) build_request(variant, atol(argv[4]) + variant, chunks, pace_us);
    conns = calloc(count, sizeof *conns);
    for (long i = 0; i < count; i++) conns[i].variant = i % VARIANTS;
    latencies = malloc(sizeof *latencies * MAX_LATENCIES);
    signal(SIGPIPE, SIG_IGN);
    ep = epoll_create1(0);
    long start = now_ns(), deadline = start + run_ms * 1000000L, opened = 0;
    struct epoll_event events[MAX_EVENTS];
    static char buf[READ_SIZE];
    for (long now; (now = now_ns()) < deadline;) {
        while (opened < count && now - start >= opened * pace_us * 1000 / count) open_conn(&conns[opened++]);
        long wait_ms = opened < count ? 1 : (deadline - now) / 1000000 + 1;
        int n = wait_for_events(ep, events, MAX_EVENTS, (int)wait_ms);
        for (int i = 0; i < n; i++) {
            struct conn *c = &conns[events[i].data.u32];
            int alive = 1;
            if (events[i].events & EPOLLOUT) alive = send_request(c);
            if (alive && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                ssize_t got = recv(c->fd, buf, sizeof buf, 0);
                alive = got > 0 ? parse(c, buf, got) : got < 0 && errno == EAGAIN;
            }
            if (alive) continue;
            if (c->phase > HEAD || c->head_len) lost++;
            reopen(c);
        }
    }
    double seconds = (now_ns() - start) / 1e9;
    qsort(latencies, latency_count, sizeof *latencies, by_value);
    double p50 = latency_count ? latencies[latency_count / 2] / 10.0 : 0, p99 = latency_count ? latencies[latency_count * 99 / 100] / 10.0 : 0;
    printf("{\"answers\": %ld, \"events\": %ld, \"bad\": %ld, \"lost\": %ld, \"reconnects\": %ld, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
           answers, events_seen, bad, lost, reconnects, seconds, p50, p99);
    return 0;
}
