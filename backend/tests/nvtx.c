/* A profiler that writes down the ranges it hears of, in PIECEWISE_HEARD too, by the protocol of NVTX 3's header. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
struct callbacks { size_t bytes; int (*functions)(int, function ***, unsigned *); };
struct version { size_t bytes; uint32_t version, reserved; void (*set)(uint32_t); };

static char heard[4096];

static void hear(const char *what) {
    const char *path = getenv("PIECEWISE_HEARD");
    FILE *file = path ? fopen(path, "a") : 0;
    if (file) {
        fputs(what, file);
        fclose(file);
    }
    strncat(heard, what, sizeof heard - strlen(heard) - 1);
}

static int push(const char *name) {
    hear("(");
    hear(name);
    return 0;
}

static int pop(void) {
    hear(")");
    return 0;
}

const char *piecewise_heard(void) { return heard; }

int InitializeInjectionNvtx2(const void *(*table)(uint32_t)) {
    static const unsigned sizes[] = {16, 9, 15, 7, 16, 7};
    const struct callbacks *callbacks = table(1);
    const struct version *version = table(3);
    function **functions = 0;
    unsigned size = 0;
    if (!callbacks || callbacks->bytes != sizeof *callbacks || table(2) || table(4)) return 0;
    if (!version || version->bytes != sizeof *version || version->version != 3) return 0;
    version->set(3);
    for (int module = 6; module >= 1; module--) {
        if (!callbacks->functions(module, &functions, &size) || size != sizes[module - 1]) return 0;
        if (functions[0] || functions[size]) return 0;
        for (unsigned i = 1; i < size; i++)
            if (!functions[i] || *functions[i]) return 0;
    }
    if (callbacks->functions(0, 0, 0) || callbacks->functions(7, 0, 0)) return 0;
#ifndef DEAF
    *functions[9] = (function)push;
    *functions[11] = (function)pop;
#endif
    return 1;
}
