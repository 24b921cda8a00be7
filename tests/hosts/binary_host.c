/* A host for pipeline binaries that shares nothing with the project: its own instance, device and create info.
 *
 *     binary_host capture SHADER.spv FILE    compile a compute pipeline, capture it, write its binaries
 *     binary_host create FILE                make the same pipeline of binaries: no SPIR-V anywhere
 *
 * FILE: u32 count, then of each binary u32 size of the key, 32 bytes key, u64 size of the data, data. Little-endian.
 * Both print the global key and the result; `capture` also the pipeline's key. The pipeline has an empty layout and the
 * entry point "main". The device is opened with what pipeline binaries need and nothing else. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

/* Headers older than 1.3.294 (Debian 12) know nothing of this; numbers and layouts are those of the registry. */
#ifndef VK_KHR_maintenance5
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_5_FEATURES_KHR ((VkStructureType)1000470000)
#define VK_STRUCTURE_TYPE_PIPELINE_CREATE_FLAGS_2_CREATE_INFO_KHR ((VkStructureType)1000470005)
typedef struct {
    VkStructureType sType;
    void *pNext;
    VkBool32 maintenance5;
} VkPhysicalDeviceMaintenance5FeaturesKHR;
typedef struct {
    VkStructureType sType;
    const void *pNext;
    uint64_t flags;
} VkPipelineCreateFlags2CreateInfoKHR;
#endif
#ifndef VK_KHR_pipeline_binary
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_BINARY_FEATURES_KHR ((VkStructureType)1000483000)
#define VK_STRUCTURE_TYPE_PIPELINE_BINARY_CREATE_INFO_KHR ((VkStructureType)1000483001)
#define VK_STRUCTURE_TYPE_PIPELINE_BINARY_INFO_KHR ((VkStructureType)1000483002)
#define VK_STRUCTURE_TYPE_PIPELINE_BINARY_KEY_KHR ((VkStructureType)1000483003)
#define VK_STRUCTURE_TYPE_PIPELINE_BINARY_DATA_INFO_KHR ((VkStructureType)1000483006)
#define VK_STRUCTURE_TYPE_PIPELINE_CREATE_INFO_KHR ((VkStructureType)1000483007)
#define VK_STRUCTURE_TYPE_PIPELINE_BINARY_HANDLES_INFO_KHR ((VkStructureType)1000483009)
#define VK_PIPELINE_CREATE_2_CAPTURE_DATA_BIT_KHR 0x80000000ULL
typedef uint64_t VkPipelineBinaryKHR;
typedef struct {
    VkStructureType sType;
    void *pNext;
    VkBool32 pipelineBinaries;
} VkPhysicalDevicePipelineBinaryFeaturesKHR;
typedef struct {
    VkStructureType sType;
    void *pNext;
    uint32_t keySize;
    uint8_t key[32];
} VkPipelineBinaryKeyKHR;
typedef struct {
    size_t dataSize;
    void *pData;
} VkPipelineBinaryDataKHR;
typedef struct {
    uint32_t binaryCount;
    const VkPipelineBinaryKeyKHR *pPipelineBinaryKeys;
    const VkPipelineBinaryDataKHR *pPipelineBinaryData;
} VkPipelineBinaryKeysAndDataKHR;
typedef struct {
    VkStructureType sType;
    void *pNext;
} VkPipelineCreateInfoKHR;
typedef struct {
    VkStructureType sType;
    const void *pNext;
    const VkPipelineBinaryKeysAndDataKHR *pKeysAndDataInfo;
    VkPipeline pipeline;
    const VkPipelineCreateInfoKHR *pPipelineCreateInfo;
} VkPipelineBinaryCreateInfoKHR;
typedef struct {
    VkStructureType sType;
    const void *pNext;
    uint32_t binaryCount;
    const VkPipelineBinaryKHR *pPipelineBinaries;
} VkPipelineBinaryInfoKHR;
typedef struct {
    VkStructureType sType;
    void *pNext;
    VkPipelineBinaryKHR pipelineBinary;
} VkPipelineBinaryDataInfoKHR;
typedef struct {
    VkStructureType sType;
    const void *pNext;
    uint32_t pipelineBinaryCount;
    VkPipelineBinaryKHR *pPipelineBinaries;
} VkPipelineBinaryHandlesInfoKHR;
typedef VkResult(VKAPI_PTR *PFN_vkCreatePipelineBinariesKHR)(VkDevice, const VkPipelineBinaryCreateInfoKHR *,
                                                             const VkAllocationCallbacks *,
                                                             VkPipelineBinaryHandlesInfoKHR *);
typedef void(VKAPI_PTR *PFN_vkDestroyPipelineBinaryKHR)(VkDevice, VkPipelineBinaryKHR, const VkAllocationCallbacks *);
typedef VkResult(VKAPI_PTR *PFN_vkGetPipelineKeyKHR)(VkDevice, const VkPipelineCreateInfoKHR *, VkPipelineBinaryKeyKHR *);
typedef VkResult(VKAPI_PTR *PFN_vkGetPipelineBinaryDataKHR)(VkDevice, const VkPipelineBinaryDataInfoKHR *,
                                                            VkPipelineBinaryKeyKHR *, size_t *, void *);
#endif

enum { MOST_BINARIES = 64 };

static VkInstance instance;
static VkDevice device;

static void *need(void *pointer, const char *what) {
    if (!pointer) {
        fprintf(stderr, "%s\n", what);
        exit(2);
    }
    return pointer;
}

static void check(VkResult result, const char *command) {
    if (result != VK_SUCCESS) {
        fprintf(stderr, "%s returned %d\n", command, result);
        exit(3);
    }
}

#define LOAD(name) PFN_##name name = (PFN_##name)need((void *)vkGetDeviceProcAddr(device, #name), #name)

static void open_device(void) {
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                     .pApplicationName = "binary host",
                                     .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo instance_info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    check(vkCreateInstance(&instance_info, NULL, &instance), "vkCreateInstance");
    uint32_t count = 1;
    VkPhysicalDevice physical;
    VkResult result = vkEnumeratePhysicalDevices(instance, &count, &physical);
    if (result != VK_INCOMPLETE)
        check(result, "vkEnumeratePhysicalDevices");
    if (!count)
        exit(2);
    const char *extensions[] = {"VK_KHR_maintenance5", "VK_KHR_pipeline_binary"};
    VkPhysicalDeviceMaintenance5FeaturesKHR maintenance5 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_5_FEATURES_KHR, .maintenance5 = VK_TRUE};
    VkPhysicalDevicePipelineBinaryFeaturesKHR binaries = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_BINARY_FEATURES_KHR,
        .pNext = &maintenance5,
        .pipelineBinaries = VK_TRUE};
    float priority = 1.0f;
    VkDeviceQueueCreateInfo queue = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &binaries,
                               .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &queue,
                               .enabledExtensionCount = 2,
                               .ppEnabledExtensionNames = extensions};
    check(vkCreateDevice(physical, &info, NULL, &device), "vkCreateDevice");
}

static void print_key(const char *name, const VkPipelineBinaryKeyKHR *key) {
    printf("%s ", name);
    for (uint32_t byte = 0; byte < key->keySize; byte++)
        printf("%02x", key->key[byte]);
    printf("\n");
}

static void print_global_key(void) {
    LOAD(vkGetPipelineKeyKHR);
    VkPipelineBinaryKeyKHR key = {.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_KEY_KHR};
    check(vkGetPipelineKeyKHR(device, NULL, &key), "vkGetPipelineKeyKHR");
    print_key("global", &key);
}

static VkComputePipelineCreateInfo pipeline_info(VkShaderModule module) {
    VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    VkPipelineLayout layout;
    check(vkCreatePipelineLayout(device, &info, NULL, &layout), "vkCreatePipelineLayout");
    return (VkComputePipelineCreateInfo){.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                         .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                   .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                   .module = module,
                                                   .pName = "main"},
                                         .layout = layout,
                                         .basePipelineIndex = 0};
}

static VkShaderModule read_module(const char *path) {
    static uint32_t code[65536];
    FILE *file = need(fopen(path, "rb"), path);
    size_t words = fread(code, 4, 65536, file);
    fclose(file);
    VkShaderModuleCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = words * 4, .pCode = code};
    VkShaderModule module;
    check(vkCreateShaderModule(device, &info, NULL, &module), "vkCreateShaderModule");
    return module;
}

static void capture(const char *shader, const char *path) {
    LOAD(vkGetPipelineKeyKHR);
    LOAD(vkCreatePipelineBinariesKHR);
    LOAD(vkGetPipelineBinaryDataKHR);
    VkComputePipelineCreateInfo info = pipeline_info(read_module(shader));
    VkPipelineCreateInfoKHR asked = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CREATE_INFO_KHR, .pNext = &info};
    VkPipelineBinaryKeyKHR key = {.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_KEY_KHR};
    check(vkGetPipelineKeyKHR(device, &asked, &key), "vkGetPipelineKeyKHR");
    print_key("pipeline", &key);
    VkPipelineCreateFlags2CreateInfoKHR flags = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CREATE_FLAGS_2_CREATE_INFO_KHR,
                                                 .flags = VK_PIPELINE_CREATE_2_CAPTURE_DATA_BIT_KHR};
    info.pNext = &flags;
    VkPipeline pipeline;
    check(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &pipeline), "vkCreateComputePipelines");
    VkPipelineBinaryCreateInfoKHR from = {.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_CREATE_INFO_KHR, .pipeline = pipeline};
    VkPipelineBinaryKHR handles[MOST_BINARIES];
    VkPipelineBinaryHandlesInfoKHR made = {.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_HANDLES_INFO_KHR};
    check(vkCreatePipelineBinariesKHR(device, &from, NULL, &made), "vkCreatePipelineBinariesKHR");
    if (made.pipelineBinaryCount > MOST_BINARIES)
        exit(2);
    made.pPipelineBinaries = handles;
    check(vkCreatePipelineBinariesKHR(device, &from, NULL, &made), "vkCreatePipelineBinariesKHR");
    FILE *file = need(fopen(path, "wb"), path);
    fwrite(&made.pipelineBinaryCount, 4, 1, file);
    for (uint32_t each = 0; each < made.pipelineBinaryCount; each++) {
        VkPipelineBinaryDataInfoKHR of = {.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_DATA_INFO_KHR,
                                          .pipelineBinary = handles[each]};
        VkPipelineBinaryKeyKHR name = {.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_KEY_KHR};
        size_t size = 0;
        check(vkGetPipelineBinaryDataKHR(device, &of, &name, &size, NULL), "vkGetPipelineBinaryDataKHR");
        void *data = need(malloc(size), "memory");
        check(vkGetPipelineBinaryDataKHR(device, &of, &name, &size, data), "vkGetPipelineBinaryDataKHR");
        uint64_t wide = size;
        fwrite(&name.keySize, 4, 1, file);
        fwrite(name.key, 1, 32, file);
        fwrite(&wide, 8, 1, file);
        fwrite(data, 1, size, file);
        free(data);
    }
    fclose(file);
    printf("captured %u\n", made.pipelineBinaryCount);
}

static void create(const char *path) {
    LOAD(vkCreatePipelineBinariesKHR);
    LOAD(vkDestroyPipelineBinaryKHR);
    FILE *file = need(fopen(path, "rb"), path);
    uint32_t count;
    VkPipelineBinaryKeyKHR keys[MOST_BINARIES];
    VkPipelineBinaryDataKHR data[MOST_BINARIES];
    if (fread(&count, 4, 1, file) != 1 || !count || count > MOST_BINARIES)
        exit(2);
    for (uint32_t each = 0; each < count; each++) {
        uint64_t size;
        keys[each] = (VkPipelineBinaryKeyKHR){.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_KEY_KHR};
        if (fread(&keys[each].keySize, 4, 1, file) != 1 || fread(keys[each].key, 1, 32, file) != 32 ||
            fread(&size, 8, 1, file) != 1)
            exit(2);
        data[each] = (VkPipelineBinaryDataKHR){.dataSize = size, .pData = need(malloc(size), "memory")};
        if (fread(data[each].pData, 1, size, file) != size)
            exit(2);
    }
    fclose(file);
    VkPipelineBinaryKeysAndDataKHR both = {count, keys, data};
    VkPipelineBinaryCreateInfoKHR from = {.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_CREATE_INFO_KHR,
                                          .pKeysAndDataInfo = &both};
    VkPipelineBinaryKHR handles[MOST_BINARIES];
    VkPipelineBinaryHandlesInfoKHR made = {.sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_HANDLES_INFO_KHR,
                                           .pipelineBinaryCount = count,
                                           .pPipelineBinaries = handles};
    check(vkCreatePipelineBinariesKHR(device, &from, NULL, &made), "vkCreatePipelineBinariesKHR");
    VkComputePipelineCreateInfo info = pipeline_info(VK_NULL_HANDLE);
    VkPipelineBinaryInfoKHR binaries = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_BINARY_INFO_KHR, .binaryCount = count, .pPipelineBinaries = handles};
    info.pNext = &binaries;
    VkPipeline pipeline = VK_NULL_HANDLE;
    check(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &pipeline), "vkCreateComputePipelines");
    for (uint32_t each = 0; each < count; each++)
        vkDestroyPipelineBinaryKHR(device, handles[each], NULL);
    printf("created %s\n", pipeline ? "yes" : "no");
    vkDestroyPipeline(device, pipeline, NULL);
}

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    open_device();
    print_global_key();
    if (strcmp(arguments[1], "capture") == 0 && count == 4)
        capture(arguments[2], arguments[3]);
    else if (strcmp(arguments[1], "create") == 0)
        create(arguments[2]);
    else
        return 2;
    return 0;
}
