/* Mock engine: decides what a proxy under test sees upstream, as cheaply as one core allows (epoll, no allocation per request).
 *
 * It speaks enough of an OpenAI-compatible engine for a gate to start on it: /health, /v1/models, /metrics, /tokenize,
 * /v1/chat/completions and /v1/completions, plain or (body has "stream":true) as server-sent events in chunked coding.
 * Two request headers steer a stream: x-mock-chunks (events) and x-mock-pace-us (between events; 0 = as fast as the socket takes).
 *
 * usage: mock_engine NUM_GPU_BLOCKS MAX_MODEL_LEN      binds 127.0.0.1 port 0 and prints the port.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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

enum { MAX_FD = 16384, IN_START = 4096, IN_LIMIT = 8 << 20, OUT_SIZE = 4096, MAX_EVENTS = 512 };

struct conn {
    int fd;
    char *in;                      /* request bytes so far; grows up to IN_LIMIT */
    size_t in_len, in_size;
    char out[OUT_SIZE];            /* what the socket did not take yet */
    size_t out_off, out_len;
    long chunks_left, pace_ns;     /* chunks_left < 0: no stream is running */
    long due_ns;
    int usage_wanted, want_out;
    struct conn *prev, *next;      /* streams that wait: one list for paced (sorted by due_ns), one for flooding */
    struct conn *list;
};

static struct conn *conns[MAX_FD];
static struct conn paced, flooding; /* list heads */
static int ep;
static long num_gpu_blocks, max_model_len;
static char event_bytes[512], metrics_body[1024], models_body[512];
static size_t event_len;

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void list_remove(struct conn *c) {
    if (!c->list) return;
    c->prev->next = c->next;
    c->next->prev = c->prev;
    c->list = NULL;
}

static void list_insert(struct conn *head, struct conn *c) {
    struct conn *after = head->prev; /* all streams of a run share one pace, so the tail is nearly always the place */
    while (head == &paced && after != head && after->due_ns > c->due_ns) after = after->prev;
    c->prev = after;
    c->next = after->next;
    after->next->prev = c;
    after->next = c;
    c->list = head;
}

static void want_out(struct conn *c, int on) {
    if (c->want_out == on) return;
    c->want_out = on;
    struct epoll_event e = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.fd = c->fd};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}

static void drop(struct conn *c) {
    list_remove(c);
    conns[c->fd] = NULL;
    close(c->fd);
    free(c->in);
    free(c);
}

/* Sends now what fits and keeps the rest; returns 0 when the connection is lost. */
static int put(struct conn *c, const char *data, size_t len) {
    if (c->out_len == c->out_off) {
        c->out_off = c->out_len = 0;
        ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return 0;
        if (n > 0) data += n, len -= n;
    }
    if (!len) return 1;
    if (c->out_len + len > OUT_SIZE) return 0;
    memcpy(c->out + c->out_len, data, len);
    c->out_len += len;
    want_out(c, 1);
    return 1;
}

static int answer(struct conn *c, const char *status, const char *type, const char *body) {
    char buf[OUT_SIZE];
    int n = snprintf(buf, sizeof buf, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s", status, type, strlen(body), body);
    return put(c, buf, n);
}

/* One event; after the last one the usage (when asked), [DONE] and the end of the body. */
static int stream_step(struct conn *c) {
    if (c->chunks_left-- > 0) return put(c, event_bytes, event_len);
    char body[256] = "", buf[640];
    if (c->usage_wanted)
        strcpy(body, "data: {\"id\":\"chatcmpl-bench\",\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":1,\"total_tokens\":17}}\n\n");
    strcat(body, "data: [DONE]\n\n");
    int n = snprintf(buf, sizeof buf, "%zx\r\n%s\r\n0\r\n\r\n", strlen(body), body);
    list_remove(c);
    return put(c, buf, n);
}

static long header_number(const char *head, size_t len, const char *name, long fallback) {
    size_t name_len = strlen(name);
    for (const char *line = head, *end = head + len; line && line + name_len < end;) {
        if (!strncasecmp(line, name, name_len)) return strtol(line + name_len, NULL, 10);
        line = memchr(line, '\n', end - line);
        if (line) line++;
    }
    return fallback;
}

static int has(const char *body, size_t len, const char *text) { return memmem(body, len, text, strlen(text)) != NULL; }

static int complete(struct conn *c, const char *head, size_t head_len, const char *body, size_t body_len) {
    if (has(body, body_len, "\"stream\":true") || has(body, body_len, "\"stream\": true")) {
        c->chunks_left = header_number(head, head_len, "x-mock-chunks:", 16);
        c->pace_ns = 1000 * header_number(head, head_len, "x-mock-pace-us:", 0);
        c->usage_wanted = has(body, body_len, "\"include_usage\":true") || has(body, body_len, "\"include_usage\": true");
        c->due_ns = now_ns() + c->pace_ns;
        list_insert(c->pace_ns ? &paced : &flooding, c);
        static const char start[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
        return put(c, start, sizeof start - 1);
    }
    char answer_body[512];
    long prompt_tokens = body_len / 4 + 1;
    snprintf(answer_body, sizeof answer_body,
        "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":"
        "{\"role\":\"assistant\",\"content\":\"the quick brown fox jumps\"},\"text\":\"the quick brown fox jumps\",\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":%ld,\"completion_tokens\":5,\"total_tokens\":%ld}}", prompt_tokens, prompt_tokens + 5);
    return answer(c, "200 OK", "application/json", answer_body);
}

static int route(struct conn *c, const char *head, size_t head_len, const char *body, size_t body_len) {
    if (!strncmp(head, "POST /v1/chat/completions ", 26) || !strncmp(head, "POST /v1/completions ", 21))
        return complete(c, head, head_len, body, body_len);
    if (!strncmp(head, "GET /health ", 12)) return answer(c, "200 OK", "text/plain", "");
    if (!strncmp(head, "GET /v1/models ", 15)) return answer(c, "200 OK", "application/json", models_body);
    if (!strncmp(head, "GET /metrics ", 13)) return answer(c, "200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics_body);
    if (!strncmp(head, "POST /tokenize ", 15)) {
        char count[128];
        snprintf(count, sizeof count, "{\"count\":%zu,\"max_model_len\":%ld,\"tokens\":[]}", body_len / 4 + 1, max_model_len);
        return answer(c, "200 OK", "application/json", count);
    }
    return answer(c, "404 Not Found", "application/json", "{\"error\":{\"message\":\"no such path\",\"type\":\"NotFoundError\",\"param\":null,\"code\":404}}");
}

/* Reads what came and answers every whole request; returns 0 when the connection is done. */
static int readable(struct conn *c) {
    if (c->in_len == c->in_size) {
        if (c->in_size >= IN_LIMIT) return 0;
        c->in_size = c->in_size ? c->in_size * 4 : IN_START;
        c->in = realloc(c->in, c->in_size);
        if (!c->in) return 0;
    }
    ssize_t n = recv(c->fd, c->in + c->in_len, c->in_size - c->in_len, 0);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    c->in_len += n;
    for (;;) {
        char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
        if (!end) return 1;
        size_t head_len = end + 4 - c->in;
        size_t body_len = header_number(c->in, head_len, "content-length:", 0);
        if (header_number(c->in, head_len, "transfer-encoding:", -1) != -1) return answer(c, "411 Length Required", "text/plain", ""), 0;
        if (c->in_len < head_len + body_len) return 1;
        if (!route(c, c->in, head_len, c->in + head_len, body_len)) return 0;
        c->in_len -= head_len + body_len;
        if (!c->in_len) return 1;
        memmove(c->in, c->in + head_len + body_len, c->in_len);
    }
}

static int writable(struct conn *c) {
    ssize_t n = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN;
    c->out_off += n;
    if (c->out_off == c->out_len) c->out_off = c->out_len = 0, want_out(c, 0);
    return 1;
}

/* Sends every due event; returns how long epoll may sleep, in ms. */
static int run_streams(void) {
    long now = now_ns();
    while (paced.next != &paced && paced.next->due_ns <= now) {
        struct conn *c = paced.next;
        list_remove(c);
        c->due_ns += c->pace_ns;
        list_insert(&paced, c);
        if (!stream_step(c)) drop(c);
    }
    for (struct conn *c = flooding.next, *next; c != &flooding; c = next) {
        next = c->next;
        if (!c->want_out && !stream_step(c)) drop(c);
    }
    for (struct conn *c = flooding.next; c != &flooding; c = c->next)
        if (!c->want_out) return 0;
    if (paced.next == &paced) return -1;
    long wait = (paced.next->due_ns - now_ns() + 999999) / 1000000;
    return wait > 0 ? (int)wait : 0;
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        struct conn *c = fd < MAX_FD ? calloc(1, sizeof *c) : NULL;
        if (!c) { close(fd); continue; }
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->fd = fd;
        conns[fd] = c;
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    }
}

static void write_bodies(void) {
    const char *event = "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\","
        "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    event_len = snprintf(event_bytes, sizeof event_bytes, "%zx\r\n%s\r\n", strlen(event), event);
    snprintf(models_body, sizeof models_body, "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"owned_by\":\"bench\",\"max_model_len\":%ld}]}", max_model_len);
    snprintf(metrics_body, sizeof metrics_body,
        "# TYPE vllm:cache_config_info gauge\n"
        "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\",num_gpu_blocks=\"%ld\"} 1.0\n"
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"mock\"} 0.0\n"
        "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"mock\"} 0.0\n"
        "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"mock\"} 0.0\n"
        "# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total{engine=\"0\",model_name=\"mock\"} 0.0\n", num_gpu_blocks);
}

int main(int argc, char **argv) {
    num_gpu_blocks = argc > 1 ? atol(argv[1]) : 1000000;
    max_model_len = argc > 2 ? atol(argv[2]) : 131072;
    paced.prev = paced.next = &paced;
    flooding.prev = flooding.next = &flooding;
    write_bodies();
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_len = sizeof at;
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 4096) || getsockname(listener, (void *)&at, &at_len)) return perror("mock_engine"), 1;
    ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, events[MAX_EVENTS];
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        int n = wait_for_events(ep, events, MAX_EVENTS, run_streams());
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) { accept_all(listener); continue; }
            struct conn *c = conns[fd];
            if (!c) continue;
            int alive = 1;
            if (events[i].events & EPOLLOUT) alive = writable(c);
            if (alive && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) alive = readable(c);
            if (!alive) drop(c);
        }
    }
}
