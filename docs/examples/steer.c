/* A launcher that lets orchestrator fill the cache beside it, and says what it needs first.
 *
 *   cc steer.c -o steer
 *   steer SET DEVICE CACHE_DIR KEY...
 *
 * It starts `orchestrator compile` with two pipes: commands go in on descriptor 4, events come out on descriptor 3
 * (../control.md). Nothing is compiled at first. The pipelines of the level that is entered (KEY, as `orchestrator
 * list` shows them) get the time until they are there; then the rest may go on as long as it takes.
 *
 * stdout: a line for each thing that happens. Exit code: that of `orchestrator compile`; 2 where it cannot be started.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EVENTS = 3, COMMANDS = 4, USAGE = 2 };

static void fail(const char *what) {
    perror(what);
    exit(USAGE);
}

static pid_t start(char **arguments, FILE **events, FILE **commands) {
    int out[2], in[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(in, O_CLOEXEC) != 0) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        /* Numbers that neither pipe has, so that no dup2 closes the other's end. */
        int write_end = fcntl(out[1], F_DUPFD_CLOEXEC, COMMANDS + 1);
        int read_end = fcntl(in[0], F_DUPFD_CLOEXEC, COMMANDS + 1);
        if (dup2(write_end, EVENTS) < 0 || dup2(read_end, COMMANDS) < 0) fail("dup2");
        execlp("orchestrator", "orchestrator", "compile", arguments[0], "--device", arguments[1], "--cache-dir",
               arguments[2], "--quiet", "--progress", "jsonl:3", "--control", "4", (char *)NULL);
        fail("orchestrator");
    }
    close(out[1]);
    close(in[0]);
    *events = fdopen(out[0], "r");
    *commands = fdopen(in[1], "w");
    if (!*events || !*commands) fail("fdopen");
    setvbuf(*commands, NULL, _IOLBF, 0); /* each line goes out when it ends */
    return child;
}

/* Whether a line is this event. A real program has a JSON reader; the names of events are fixed, so this does. */
static bool is(const char *line, const char *event) {
    char start[64];
    snprintf(start, sizeof start, "{\"event\":\"%s\"", event);
    return strncmp(line, start, strlen(start)) == 0;
}

/* How many of the keys a line names for the first time: a key comes once for each application that has it. */
static int named(const char *line, char **keys, int count) {
    int found = 0;
    for (int each = 0; each < count; each++) {
        if (keys[each] && strstr(line, keys[each])) {
            keys[each] = NULL;
            found++;
        }
    }
    return found;
}

int main(int count, char **arguments) {
    if (count < 5) {
        fprintf(stderr, "steer SET DEVICE CACHE_DIR KEY...\n");
        return USAGE;
    }
    signal(SIGPIPE, SIG_IGN); /* it may end before it has read everything */
    char **keys = arguments + 4;
    int waiting = count - 4;
    FILE *events, *commands;
    pid_t child = start(arguments + 1, &events, &commands);

    fprintf(commands, "{\"command\":\"budget\",\"seconds\":0}\n");
    fprintf(commands, "{\"command\":\"promote\",\"id\":1,\"pipelines\":[");
    for (int each = 0; each < waiting; each++) fprintf(commands, "%s\"%s\"", each ? "," : "", keys[each]);
    fprintf(commands, "]}\n");

    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, events) > 0) {
        if (is(line, "error") || is(line, "message")) {
            fputs(line, stdout);
        } else if (is(line, "stage") && strstr(line, "\"compiling\"") && waiting > 0) {
            printf("the level is compiled\n");
            fprintf(commands, "{\"command\":\"budget\",\"seconds\":0.004}\n"); /* what a frame can spare */
        } else if (is(line, "progress") && waiting > 0) {
            fprintf(commands, "{\"command\":\"budget\",\"seconds\":0.004}\n");
        } else if (is(line, "settled") || is(line, "failed")) {
            int found = named(line, keys, count - 4);
            if (found && (waiting -= found) == 0) {
                printf("the level is there\n");
                fclose(commands); /* nothing more to say: the rest is compiled as fast as it goes */
                commands = NULL;
            }
        } else if (is(line, "saved")) {
            printf("saved\n");
        } else if (is(line, "end")) {
            printf("over\n");
        }
    }
    free(line);
    fclose(events);
    if (commands) fclose(commands);
    int status = 0;
    if (waitpid(child, &status, 0) < 0) fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : USAGE;
}
