/* A driver in C for the proof of attribution: it burns processor time, waits for a lock, and tells its own wall clock and how
 * long it waited, with no interpreter anywhere in it. The lock is handed over, to the writer that waited longest or to all
 * readers where none waits, so a wait ends for those who count at the moment that it is handed on, not when the machine
 * has a processor for it. */
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum strategy { NONE, SINGLE_LEVEL, WHOLE_COMPILE };

struct waiter {
    sem_t gate;
    uint64_t handed_ns;
    struct waiter *next;
};

struct driver {
    pthread_mutex_t inner;
    struct waiter *readers_waiting, *writers_waiting, **last_writer;
    int readers, writing;
};

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void burn(uint64_t duration_ns) {
    uint64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + duration_ns;
    volatile uint32_t work = 0;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end)
        for (int i = 0; i < 2000; i++) work = work * 1664525u + 1013904223u;
}

static uint64_t take(struct driver *d, int write) {
    struct waiter self = {.next = NULL};
    pthread_mutex_lock(&d->inner);
    if (!d->writing && (write ? !d->readers : !d->writers_waiting)) {
        if (write) d->writing = 1; else d->readers++;
        pthread_mutex_unlock(&d->inner);
        return 0;
    }
    sem_init(&self.gate, 0, 0);
    if (write) {
        *d->last_writer = &self;
        d->last_writer = &self.next;
    } else {
        self.next = d->readers_waiting;
        d->readers_waiting = &self;
    }
    pthread_mutex_unlock(&d->inner);
    uint64_t since = clock_ns(CLOCK_MONOTONIC);
    while (sem_wait(&self.gate)) {}
    sem_destroy(&self.gate);
    return self.handed_ns > since ? self.handed_ns - since : 0;
}

static void give(struct driver *d, int write) {
    pthread_mutex_lock(&d->inner);
    if (write) d->writing = 0; else d->readers--;
    struct waiter *first = NULL;
    if (!d->readers && !d->writing) {
        if ((first = d->writers_waiting)) {
            d->writing = 1;
            if (!(d->writers_waiting = first->next)) d->last_writer = &d->writers_waiting;
            first->next = NULL;
        } else {
            first = d->readers_waiting;
            d->readers_waiting = NULL;
            for (struct waiter *each = first; each; each = each->next) d->readers++;
        }
    }
    pthread_mutex_unlock(&d->inner);
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    while (first) {
        struct waiter *next = first->next; /* gone as soon as it is woken */
        first->handed_ns = now;
        sem_post(&first->gate);
        first = next;
    }
}

struct driver *driver_new(void) {
    struct driver *d = calloc(1, sizeof *d);
    pthread_mutex_init(&d->inner, NULL);
    d->last_writer = &d->writers_waiting;
    return d;
}

void driver_free(struct driver *d) {
    pthread_mutex_destroy(&d->inner);
    free(d);
}

/* One pipeline; what it took by the clock on the wall, and how long of that the lock was waited for. */
void driver_create(struct driver *d, int strategy, uint64_t look_up_ns, uint64_t compile_ns, uint64_t insert_ns,
                   uint64_t *duration_ns, uint64_t *wait_ns) {
    uint64_t start = clock_ns(CLOCK_MONOTONIC), waited = 0;
    if (strategy == WHOLE_COMPILE) waited += take(d, 1);
    if (strategy == SINGLE_LEVEL) waited += take(d, 0);
    burn(look_up_ns);
    if (strategy == SINGLE_LEVEL) give(d, 0);
    burn(compile_ns);
    if (strategy == SINGLE_LEVEL) waited += take(d, 1);
    burn(insert_ns);
    if (strategy != NONE) give(d, 1);
    *wait_ns = waited;
    *duration_ns = clock_ns(CLOCK_MONOTONIC) - start;
}
