/* A fake libnvidia-ml.so.1. Every call reads the file that $FAKE_NVML names; see __init__.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3,
       NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };
enum { MAX_GPUS = 16, MAX_ERRORS = 64, MAX_PROCESSES = 64 };

typedef struct { char uuid[96], name[96]; unsigned long long total, used; int major, minor; } gpu_t;
typedef struct { int gpu, code; char call[32]; } error_t;
typedef struct { int gpu; unsigned pid; long long used; } process_t;

static struct {
    char driver[80];
    int init_error, count_error, gpus, errors, processes;
    gpu_t gpu[MAX_GPUS];
    error_t error[MAX_ERRORS];
    process_t process[MAX_PROCESSES];
} world;
static int started;

static void read_line(const char *line) {
    gpu_t gpu;
    error_t error;
    process_t process;
    memset(&gpu, 0, sizeof gpu);
    if (sscanf(line, "driver %79s", world.driver) == 1) return;
    if (sscanf(line, "init %d", &world.init_error) == 1) return;
    if (sscanf(line, "count %d", &world.count_error) == 1) return;
    if (sscanf(line, "gpu %95s %llu %llu %d %d %95[^\n]", gpu.uuid, &gpu.total, &gpu.used,
               &gpu.major, &gpu.minor, gpu.name) == 6 && world.gpus < MAX_GPUS)
        world.gpu[world.gpus++] = gpu;
    else if (sscanf(line, "error %d %31s %d", &error.gpu, error.call, &error.code) == 3 &&
             world.errors < MAX_ERRORS)
        world.error[world.errors++] = error;
    else if (sscanf(line, "process %d %u %lld", &process.gpu, &process.pid, &process.used) == 3 &&
             world.processes < MAX_PROCESSES)
        world.process[world.processes++] = process;
}

static void look(void) {
    char line[512];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(&world, 0, sizeof world);
    if (!file) { world.init_error = DRIVER_NOT_LOADED; return; }
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
}

/* A handle is the address of the GPU's place in the table: stable for the life of the process. */
static int index_of(void *handle) {
    look();
    if (!started) return -UNINITIALIZED;
    int index = (int)((gpu_t *)handle - world.gpu);
    return index >= 0 && index < world.gpus ? index : -INVALID_ARGUMENT;
}

static int fails(int index, const char *call) {
    if (index < 0) return -index;
    for (int i = 0; i < world.errors; i++)
        if (world.error[i].gpu == index && !strcmp(world.error[i].call, call))
            return world.error[i].code;
    return SUCCESS;
}

static int text(char *out, unsigned length, const char *value) {
    if (strlen(value) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

int nvmlInit_v2(void) {
    look();
    if (world.init_error) return world.init_error;
    started = 1;
    return SUCCESS;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { started = 0; return SUCCESS; }

const char *nvmlErrorString(int code) {
    static char message[48];
    snprintf(message, sizeof message, "fake NVML error %d", code);
    return message;
}

int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    look();
    return started ? text(out, length, world.driver) : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    look();
    if (!started) return UNINITIALIZED;
    if (world.count_error) return world.count_error;
    *count = (unsigned)world.gpus;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    look();
    if (!started) return UNINITIALIZED;
    if ((int)index >= world.gpus) return INVALID_ARGUMENT;
    *handle = &world.gpu[index];
    return fails((int)index, "handle");
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned length) {
    int index = index_of(handle), code = fails(index, "uuid");
    return code ? code : text(out, length, world.gpu[index].uuid);
}

int nvmlDeviceGetName(void *handle, char *out, unsigned length) {
    int index = index_of(handle), code = fails(index, "name");
    return code ? code : text(out, length, world.gpu[index].name);
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    int index = index_of(handle), code = fails(index, "capability");
    if (code) return code;
    *major = world.gpu[index].major;
    *minor = world.gpu[index].minor;
    return SUCCESS;
}

typedef struct { unsigned long long total, free, used; } memory_t;

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    int index = index_of(handle), code = fails(index, "memory");
    if (code) return code;
    memory->total = world.gpu[index].total;
    memory->used = world.gpu[index].used;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } info_t;

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, info_t *infos) {
    int index = index_of(handle), code = fails(index, "compute");
    unsigned found = 0;
    if (code) return code;
    for (int i = 0; i < world.processes; i++) {
        if (world.process[i].gpu != index) continue;
        if (found < *count) {
            info_t info = {world.process[i].pid, (unsigned long long)world.process[i].used, ~0u, ~0u};
            infos[found] = info;
        }
        found++;
    }
    code = found > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return code;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, info_t *infos) {
    int index = index_of(handle), code = fails(index, "graphics");
    (void)infos;
    *count = 0;
    return code;
}
