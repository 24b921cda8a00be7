/* A Vulkan layer that lies about pipeline caches in the ways that LIES names, read at each call:
 *
 *   hit            creation feedback says that each pipeline came from the application's cache
 *   merge-fails    vkMergePipelineCaches returns VK_ERROR_OUT_OF_HOST_MEMORY
 *   merge-nothing  ... returns VK_SUCCESS and merges nothing
 *   merge-first    ... returns VK_SUCCESS and merges the first source only
 *   size-nothing   vkGetPipelineCacheData returns VK_SUCCESS for a query of the size and sets none
 *   no-flags       vkCreatePipelineCache fails where a flag is set
 *
 * One driver in a process, any number of its devices. */
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>
#include <vulkan/vk_layer.h>

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static VkInstance instance;
static VkDevice device;

static int lies(const char *what) {
    const char *lie = getenv("LIES");
    return lie && strstr(lie, what);
}

#define NEXT(name) ((PFN_##name)next_device(device, #name))

static void call_it_a_hit(const void *chain) {
    for (const VkBaseInStructure *each = chain; lies("hit") && each; each = each->pNext)
        if (each->sType == VK_STRUCTURE_TYPE_PIPELINE_CREATION_FEEDBACK_CREATE_INFO)
            ((const VkPipelineCreationFeedbackCreateInfo *)each)->pPipelineCreationFeedback->flags |=
                VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT | VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_graphics(VkDevice d, VkPipelineCache cache, uint32_t count,
        const VkGraphicsPipelineCreateInfo *infos, const VkAllocationCallbacks *callbacks, VkPipeline *out) {
    VkResult result = NEXT(vkCreateGraphicsPipelines)(d, cache, count, infos, callbacks, out);
    for (uint32_t i = 0; i < count; i++) call_it_a_hit(infos[i].pNext);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_compute(VkDevice d, VkPipelineCache cache, uint32_t count,
        const VkComputePipelineCreateInfo *infos, const VkAllocationCallbacks *callbacks, VkPipeline *out) {
    VkResult result = NEXT(vkCreateComputePipelines)(d, cache, count, infos, callbacks, out);
    for (uint32_t i = 0; i < count; i++) call_it_a_hit(infos[i].pNext);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_cache(VkDevice d, const VkPipelineCacheCreateInfo *info,
        const VkAllocationCallbacks *callbacks, VkPipelineCache *out) {
    if (lies("no-flags") && info->flags) return VK_ERROR_OUT_OF_HOST_MEMORY;
    return NEXT(vkCreatePipelineCache)(d, info, callbacks, out);
}

static VKAPI_ATTR VkResult VKAPI_CALL merge(VkDevice d, VkPipelineCache into, uint32_t count, const VkPipelineCache *from) {
    if (lies("merge-fails")) return VK_ERROR_OUT_OF_HOST_MEMORY;
    if (lies("merge-nothing")) return VK_SUCCESS;
    return NEXT(vkMergePipelineCaches)(d, into, lies("merge-first") ? 1 : count, from);
}

static VKAPI_ATTR VkResult VKAPI_CALL get_data(VkDevice d, VkPipelineCache cache, size_t *size, void *data) {
    if (lies("size-nothing") && !data) return VK_SUCCESS;
    return NEXT(vkGetPipelineCacheData)(d, cache, size, data);
}

static VkLayerDeviceCreateInfo *device_link(const void *chain) {
    VkLayerDeviceCreateInfo *each = (VkLayerDeviceCreateInfo *)chain;
    while (each->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || each->function != VK_LAYER_LINK_INFO)
        each = (VkLayerDeviceCreateInfo *)each->pNext;
    return each;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
        const VkAllocationCallbacks *callbacks, VkDevice *out) {
    VkLayerDeviceCreateInfo *link = device_link(info->pNext);
    PFN_vkGetInstanceProcAddr find = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateDevice)find(instance, "vkCreateDevice"))(physical, info, callbacks, out);
    if (!result) device = *out;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
        const VkAllocationCallbacks *callbacks, VkInstance *out) {
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateInstance)next_instance(0, "vkCreateInstance"))(info, callbacks, out);
    if (!result) instance = *out;
    return result;
}

static PFN_vkVoidFunction ours(const char *name) {
    static const struct { const char *name; void *function; } own[] = {
        {"vkCreateInstance", create_instance},      {"vkCreateDevice", create_device},
        {"vkCreatePipelineCache", create_cache},    {"vkMergePipelineCaches", merge},
        {"vkGetPipelineCacheData", get_data},       {"vkCreateGraphicsPipelines", create_graphics},
        {"vkCreateComputePipelines", create_compute},
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(own[i].name, name)) return (PFN_vkVoidFunction)own[i].function;
    return 0;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetDeviceProcAddr(VkDevice d, const char *name) {
    PFN_vkVoidFunction found = strcmp(name, "vkGetDeviceProcAddr") ? ours(name) : (PFN_vkVoidFunction)vkGetDeviceProcAddr;
    return found ? found : next_device(d, name);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance i, const char *name) {
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (PFN_vkVoidFunction)vkGetInstanceProcAddr;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)vkGetDeviceProcAddr;
    PFN_vkVoidFunction found = ours(name);
    return found ? found : next_instance(i, name);
}
