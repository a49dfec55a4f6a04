/* A driver of NVIDIA's with the GPUs of a text file: libnvidia-ml.so.1 for the tests.
 *
 * The file `gpus` stands beside the library and is read at every call, so that a test changes a GPU
 * while somebody watches it. A line is one GPU:
 *   UUID NAME TOTAL_MIB USED_MIB PERCENT CAPABILITY BUS POWER_W CELSIUS MHZ THROTTLE NVLINK STATE
 * `_` in a name is a space. GPUs with the same number of NVLINK are joined; 0: with none. STATE is
 * ok, lost (fallen off the bus), old (no counter of energy, as before Volta) or slice (MIG: no
 * load, no clocks, known by its UUID alone).
 * Without the file the driver is not loaded. Names, units, structs and codes: NVIDIA, nvml.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdint.h>
#include <string.h>

enum { MOST = 64 };
enum {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15
};

typedef struct {
    char uuid[96], name[96], capability[8], bus[20], state[16];
    unsigned long long total_mib, used_mib;
    unsigned percent, power_w, celsius, mhz, throttle, nvlink;
} Gpu;

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
} Pci;

static unsigned long long energy_mj = 1000000;
int stub_users = 0; /* who began and has not given the driver back */

static int read_gpus(Gpu *gpus, unsigned *count) {
    Dl_info own;
    char path[4096];
    if (!dladdr((void *)read_gpus, &own)) return DRIVER_NOT_LOADED;
    snprintf(path, sizeof path, "%s", own.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, sizeof path - (slash ? slash + 1 - path : 0), "gpus");
    FILE *file = fopen(path, "r");
    if (!file) return DRIVER_NOT_LOADED;
    unsigned n = 0;
    for (Gpu *g = gpus; n < MOST; g++, n++) {
        if (fscanf(file, "%95s %95s %llu %llu %u %7s %19s %u %u %u %u %u %15s", g->uuid, g->name,
                   &g->total_mib, &g->used_mib, &g->percent, g->capability, g->bus, &g->power_w,
                   &g->celsius, &g->mhz, &g->throttle, &g->nvlink, g->state) != 13)
            break;
        for (char *c = g->name; *c; c++) if (*c == '_') *c = ' ';
    }
    fclose(file);
    *count = n;
    return SUCCESS;
}

static int is(const Gpu *gpu, const char *state) { return strcmp(gpu->state, state) == 0; }

/* A handle is the number of a line, from 1. */
static int of(void *handle, Gpu *gpu) {
    Gpu gpus[MOST];
    unsigned n;
    int error = read_gpus(gpus, &n);
    if (error) return error;
    uintptr_t index = (uintptr_t)handle;
    if (index < 1 || index > n) return INVALID_ARGUMENT;
    *gpu = gpus[index - 1];
    return is(gpu, "lost") ? GPU_IS_LOST : SUCCESS;
}

#define WITH(handle) Gpu gpu; int error = of(handle, &gpu); if (error) return error
#define WHOLE(handle) WITH(handle); if (is(&gpu, "slice")) return NOT_SUPPORTED

static int give(const char *text, char *out, unsigned length) {
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    Gpu gpus[MOST];
    unsigned n;
    int error = read_gpus(gpus, &n);
    stub_users += !error;
    return error;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { stub_users--; return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

/* The driver counts cards; a slice is reached by its UUID. */
int nvmlDeviceGetCount_v2(unsigned *count) {
    Gpu gpus[MOST];
    unsigned n, cards = 0;
    int error = read_gpus(gpus, &n);
    if (error) return error;
    for (unsigned i = 0; i < n; i++) cards += !is(&gpus[i], "slice");
    *count = cards;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    Gpu gpus[MOST];
    unsigned n, cards = 0;
    int error = read_gpus(gpus, &n);
    if (error) return error;
    for (unsigned i = 0; i < n; i++) {
        if (is(&gpus[i], "slice")) continue;
        if (cards++ == index) {
            *handle = (void *)(uintptr_t)(i + 1);
            return is(&gpus[i], "lost") ? GPU_IS_LOST : SUCCESS;
        }
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    Gpu gpus[MOST];
    unsigned n;
    int error = read_gpus(gpus, &n);
    if (error) return error;
    for (unsigned i = 0; i < n; i++)
        if (strcmp(gpus[i].uuid, uuid) == 0) {
            *handle = (void *)(uintptr_t)(i + 1);
            return is(&gpus[i], "lost") ? GPU_IS_LOST : SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *h, char *out, unsigned n) { WITH(h); return give(gpu.uuid, out, n); }
int nvmlDeviceGetName(void *h, char *out, unsigned n) { WITH(h); return give(gpu.name, out, n); }

int nvmlDeviceGetMemoryInfo(void *h, Memory *out) {
    WITH(h);
    out->total = gpu.total_mib << 20;
    out->used = gpu.used_mib << 20;
    out->free = out->total - out->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *h, Utilization *out) {
    WHOLE(h);
    out->gpu = gpu.percent;
    out->memory = gpu.percent;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    WITH(h);
    return sscanf(gpu.capability, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPciInfo_v3(void *h, Pci *out) {
    WITH(h);
    memset(out, 0, sizeof *out);
    /* The kernel's address with the four digits more that nvml.h shows of the domain. */
    snprintf(out->bus_id, sizeof out->bus_id, "0000%s", gpu.bus);
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { WHOLE(h); *mw = 1000 * gpu.power_w; return SUCCESS; }

int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *mj) {
    WHOLE(h);
    if (is(&gpu, "old")) return NOT_SUPPORTED;
    *mj = energy_mj += 1000;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *h, int kind, unsigned *mhz) {
    (void)kind;
    WHOLE(h);
    *mhz = gpu.mhz;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *celsius) {
    (void)sensor;
    WHOLE(h);
    *celsius = gpu.celsius;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *bits) {
    WHOLE(h);
    *bits = gpu.throttle;
    return SUCCESS;
}

/* 0: reachable by it; 6: unknown, as between GPUs that nothing joins. */
int nvmlDeviceGetP2PStatus(void *one, void *other, int index, int *status) {
    (void)index;
    Gpu a, b;
    int error = of(one, &a);
    if (!error) error = of(other, &b);
    if (error) return error;
    *status = a.nvlink && a.nvlink == b.nvlink ? 0 : 6;
    return SUCCESS;
}
