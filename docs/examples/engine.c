/* A small engine that starts with the cache file that orchestrator made, and asks the driver what it was worth.
 *
 *   cc engine.c -lvulkan -o engine          (pipeline_cache_file.h lies beside it)
 *   engine CACHE_FILE SHADERS [DEVICE]
 *
 * It opens its own instance and device, proves the file, gives the driver the bytes in it, and creates what engine.toml
 * describes. DEVICE is a part of a device's name. A file that is damaged, or another device's, is said so, and the cache
 * starts empty: everything is created all the same, only slower.
 *
 * stdout: what became of the file, then "HITS of COUNT pipelines from the cache", by the driver's own creation feedback.
 * Exit codes: 0 all hit; 1 some were compiled; 2 usage, or a file that cannot be read; 3 no device; 4 the driver refused.
 *
 * SPDX-License-Identifier: MIT */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vulkan/vulkan.h>

#include "pipeline_cache_file.h"

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

enum { ALL_HIT = 0, SOME_COMPILED = 1, USAGE = 2, NO_DEVICE = 3, REFUSED = 4 };

struct bytes {
    void *data;
    size_t size;
};

struct engine {
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    VkPipelineCache cache;
    uint32_t created, hits;
    const char *shaders;
};

static void fail(int code, const char *what, const char *which) {
    fprintf(stderr, "engine: %s%s%s\n", what, *which ? ": " : "", which);
    exit(code);
}

static void check(VkResult result, const char *command) {
    if (result < 0) fail(REFUSED, "the driver refused", command);
}

static struct bytes read_file(const char *path) {
    struct bytes found = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) fail(USAGE, "cannot be read", path);
    long size = ftell(file);
    rewind(file);
    found.size = size > 0 ? (size_t)size : 0;
    found.data = malloc(found.size + 1);
    if (!found.data || fread(found.data, 1, found.size, file) != found.size) fail(USAGE, "cannot be read", path);
    fclose(file);
    return found;
}

/* --- instance and device: what engine.toml tells about the application, and nothing else ------------------------------ */

static void open_device(struct engine *engine, const char *wanted) {
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                     .pApplicationName = "example engine",
                                     .applicationVersion = 1,
                                     .pEngineName = "none",
                                     .engineVersion = 1,
                                     .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo instance_info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                          .pApplicationInfo = &application};
    VkPhysicalDevice devices[16];
    uint32_t count = COUNT(devices);
    if (vkCreateInstance(&instance_info, NULL, &engine->instance) != VK_SUCCESS ||
        vkEnumeratePhysicalDevices(engine->instance, &count, devices) < 0)
        fail(NO_DEVICE, "no Vulkan device", "");
    for (uint32_t i = 0; i < count && !engine->physical_device; i++) {
        VkPhysicalDeviceProperties properties;
        vkGetPhysicalDeviceProperties(devices[i], &properties);
        if (strstr(properties.deviceName, wanted)) engine->physical_device = devices[i];
    }
    if (!engine->physical_device) fail(NO_DEVICE, "no Vulkan device", wanted);

    float priority = 1.0f;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkPhysicalDeviceVulkan13Features features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
                                                 .dynamicRendering = VK_TRUE};
    VkDeviceCreateInfo device_info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                      .pNext = &features,
                                      .queueCreateInfoCount = 1,
                                      .pQueueCreateInfos = &queue};
    check(vkCreateDevice(engine->physical_device, &device_info, NULL, &engine->device), "vkCreateDevice");
}

/* --- the cache ---------------------------------------------------------------------------------------------------- */

static void open_cache(struct engine *engine, const char *path) {
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = &driver};
    vkGetPhysicalDeviceProperties2(engine->physical_device, &properties);
    struct pipeline_cache_file_device device = {.vendor_id = properties.properties.vendorID,
                                                .device_id = properties.properties.deviceID,
                                                .driver_version = properties.properties.driverVersion,
                                                .driver_id = driver.driverID};
    memcpy(device.pipeline_cache_uuid, properties.properties.pipelineCacheUUID, VK_UUID_SIZE);

    struct bytes file = read_file(path);
    VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    enum pipeline_cache_file_status status =
        pipeline_cache_file_read(file.data, file.size, &device, &info.pInitialData, &info.initialDataSize);
    printf("cache file: %d, %s; %zu bytes for the driver\n", (int)status, pipeline_cache_file_text(status),
           info.initialDataSize);
    check(vkCreatePipelineCache(engine->device, &info, NULL, &engine->cache), "vkCreatePipelineCache");
    free(file.data);
}

/* --- what every pipeline needs -------------------------------------------------------------------------------------- */

static VkShaderModule module(struct engine *engine, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.spv", engine->shaders, name);
    struct bytes code = read_file(path);
    VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = code.size,
                                     .pCode = code.data};
    VkShaderModule made;
    check(vkCreateShaderModule(engine->device, &info, NULL, &made), "vkCreateShaderModule");
    free(code.data);
    return made;
}

/* One set with bindings from 0 on, and push constants; a set with none is left out. */
static VkPipelineLayout layout(struct engine *engine, const VkDescriptorType *types, uint32_t count,
                               VkShaderStageFlags stages, uint32_t push_size, VkDescriptorSetLayout *set) {
    VkDescriptorSetLayoutBinding bindings[8];
    for (uint32_t i = 0; i < count; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){i, types[i], 1, stages, NULL};
    VkDescriptorSetLayoutCreateInfo set_info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                .bindingCount = count,
                                                .pBindings = bindings};
    *set = VK_NULL_HANDLE;
    if (count)
        check(vkCreateDescriptorSetLayout(engine->device, &set_info, NULL, set), "vkCreateDescriptorSetLayout");
    VkPushConstantRange push = {stages, 0, push_size};
    VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                       .setLayoutCount = count ? 1 : 0,
                                       .pSetLayouts = set,
                                       .pushConstantRangeCount = 1,
                                       .pPushConstantRanges = &push};
    VkPipelineLayout made;
    check(vkCreatePipelineLayout(engine->device, &info, NULL, &made), "vkCreatePipelineLayout");
    return made;
}

/* Counts a pipeline by what the driver says of it, and destroys it: this engine draws nothing. */
static void account(struct engine *engine, VkResult result, VkPipeline pipeline, VkPipelineCreationFeedback feedback) {
    const VkPipelineCreationFeedbackFlags hit = VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT |
                                                VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT;
    check(result, "a pipeline");
    engine->created++;
    engine->hits += (feedback.flags & hit) == hit;
    vkDestroyPipeline(engine->device, pipeline, NULL);
}

static const VkSpecializationMapEntry CONSTANTS[] = {{0, 0, 4}, {1, 4, 4}, {2, 8, 4}};

/* --- the pipelines of engine.toml ------------------------------------------------------------------------------------- */

static void create_compute(struct engine *engine, VkShaderModule shader, VkPipelineLayout in,
                           const uint32_t constants[3]) {
    VkSpecializationInfo specialization = {3, CONSTANTS, 12, constants};
    VkPipelineCreationFeedback feedback = {0};
    VkPipelineCreationFeedbackCreateInfo asked = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CREATION_FEEDBACK_CREATE_INFO,
                                                  .pPipelineCreationFeedback = &feedback};
    VkComputePipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                        .pNext = &asked,
                                        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                  .module = shader,
                                                  .pName = "main",
                                                  .pSpecializationInfo = &specialization},
                                        .layout = in};
    VkPipeline pipeline = VK_NULL_HANDLE;
    VkResult result = vkCreateComputePipelines(engine->device, engine->cache, 1, &info, NULL, &pipeline);
    account(engine, result, pipeline, feedback);
}

static void create_post_processing(struct engine *engine) {
    static const VkDescriptorType types[] = {VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER,
                                             VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER};
    static const uint32_t groups[] = {64, 128}, radii[] = {2, 4, 8, 12};
    VkDescriptorSetLayout set;
    VkShaderModule blur = module(engine, "blur.comp"), tonemap = module(engine, "tonemap.comp");
    VkPipelineLayout in = layout(engine, types, 2, VK_SHADER_STAGE_COMPUTE_BIT, 4, &set);
    for (uint32_t i = 0; i < 16; i++)
        create_compute(engine, blur, in, (const uint32_t[]){groups[i / 8], radii[i / 2 % 4], i % 2});
    vkDestroyPipelineLayout(engine->device, in, NULL);
    vkDestroyDescriptorSetLayout(engine->device, set, NULL);
    in = layout(engine, types, 3, VK_SHADER_STAGE_COMPUTE_BIT, 56, &set);
    for (uint32_t i = 0; i < 20; i++)
        create_compute(engine, tonemap, in, (const uint32_t[]){i / 4, i / 2 % 2, i % 2});
    vkDestroyPipelineLayout(engine->device, in, NULL);
    vkDestroyDescriptorSetLayout(engine->device, set, NULL);
    vkDestroyShaderModule(engine->device, blur, NULL);
    vkDestroyShaderModule(engine->device, tonemap, NULL);
}

static void create_sky(struct engine *engine, const VkPipelineShaderStageCreateInfo stages[2], VkPipelineLayout in,
                       VkFormat format) {
    const VkStencilOpState stencil = {.compareOp = VK_COMPARE_OP_ALWAYS, .compareMask = 0xff, .writeMask = 0xff};
    const VkDynamicState states[] = {VK_DYNAMIC_STATE_VIEWPORT, VK_DYNAMIC_STATE_SCISSOR};
    VkPipelineColorBlendAttachmentState blend = {.colorWriteMask = 0xf};
    VkPipelineCreationFeedback feedback = {0};
    VkPipelineCreationFeedbackCreateInfo asked = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CREATION_FEEDBACK_CREATE_INFO,
                                                  .pPipelineCreationFeedback = &feedback};
    VkPipelineRenderingCreateInfo rendering = {.sType = VK_STRUCTURE_TYPE_PIPELINE_RENDERING_CREATE_INFO,
                                               .pNext = &asked,
                                               .colorAttachmentCount = 1,
                                               .pColorAttachmentFormats = &format,
                                               .depthAttachmentFormat = VK_FORMAT_D32_SFLOAT};
    VkPipelineVertexInputStateCreateInfo vertex_input = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_VERTEX_INPUT_STATE_CREATE_INFO};
    VkPipelineInputAssemblyStateCreateInfo assembly = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_INPUT_ASSEMBLY_STATE_CREATE_INFO,
        .topology = VK_PRIMITIVE_TOPOLOGY_TRIANGLE_LIST};
    VkPipelineViewportStateCreateInfo viewport = {.sType = VK_STRUCTURE_TYPE_PIPELINE_VIEWPORT_STATE_CREATE_INFO,
                                                  .viewportCount = 1,
                                                  .scissorCount = 1};
    VkPipelineRasterizationStateCreateInfo rasterization = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_RASTERIZATION_STATE_CREATE_INFO, .lineWidth = 1.0f};
    VkPipelineMultisampleStateCreateInfo multisample = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_MULTISAMPLE_STATE_CREATE_INFO,
        .rasterizationSamples = VK_SAMPLE_COUNT_1_BIT};
    VkPipelineDepthStencilStateCreateInfo depth = {.sType = VK_STRUCTURE_TYPE_PIPELINE_DEPTH_STENCIL_STATE_CREATE_INFO,
                                                   .depthTestEnable = VK_TRUE,
                                                   .depthCompareOp = VK_COMPARE_OP_EQUAL,
                                                   .front = stencil,
                                                   .back = stencil,
                                                   .maxDepthBounds = 1.0f};
    VkPipelineColorBlendStateCreateInfo color = {.sType = VK_STRUCTURE_TYPE_PIPELINE_COLOR_BLEND_STATE_CREATE_INFO,
                                                 .attachmentCount = 1,
                                                 .pAttachments = &blend};
    VkPipelineDynamicStateCreateInfo dynamic = {.sType = VK_STRUCTURE_TYPE_PIPELINE_DYNAMIC_STATE_CREATE_INFO,
                                                .dynamicStateCount = 2,
                                                .pDynamicStates = states};
    VkGraphicsPipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_CREATE_INFO,
                                         .pNext = &rendering,
                                         .stageCount = 2,
                                         .pStages = stages,
                                         .pVertexInputState = &vertex_input,
                                         .pInputAssemblyState = &assembly,
                                         .pViewportState = &viewport,
                                         .pRasterizationState = &rasterization,
                                         .pMultisampleState = &multisample,
                                         .pDepthStencilState = &depth,
                                         .pColorBlendState = &color,
                                         .pDynamicState = &dynamic,
                                         .layout = in};
    VkPipeline pipeline = VK_NULL_HANDLE;
    VkResult result = vkCreateGraphicsPipelines(engine->device, engine->cache, 1, &info, NULL, &pipeline);
    account(engine, result, pipeline, feedback);
}

static void create_skies(struct engine *engine) {
    static const VkFormat formats[] = {VK_FORMAT_R16G16B16A16_SFLOAT, VK_FORMAT_B10G11R11_UFLOAT_PACK32};
    static const uint32_t steps[] = {8, 16, 32};
    VkDescriptorSetLayout none;
    VkPipelineLayout in = layout(engine, NULL, 0, VK_SHADER_STAGE_FRAGMENT_BIT, 96, &none);
    VkShaderModule vertex = module(engine, "fullscreen.vert"), fragment = module(engine, "sky.frag");
    for (uint32_t i = 0; i < 6; i++) {
        VkSpecializationInfo specialization = {1, CONSTANTS, 4, &steps[i / 2]};
        VkPipelineShaderStageCreateInfo stages[] = {{.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                     .stage = VK_SHADER_STAGE_VERTEX_BIT,
                                                     .module = vertex,
                                                     .pName = "main"},
                                                    {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                     .stage = VK_SHADER_STAGE_FRAGMENT_BIT,
                                                     .module = fragment,
                                                     .pName = "main",
                                                     .pSpecializationInfo = &specialization}};
        create_sky(engine, stages, in, formats[i % 2]);
    }
    vkDestroyShaderModule(engine->device, vertex, NULL);
    vkDestroyShaderModule(engine->device, fragment, NULL);
    vkDestroyPipelineLayout(engine->device, in, NULL);
}

int main(int count, char **arguments) {
    if (count < 3 || count > 4) fail(USAGE, "usage: engine CACHE_FILE SHADERS [DEVICE]", "");
    struct engine engine = {.shaders = arguments[2]};
    open_device(&engine, count > 3 ? arguments[3] : "");
    open_cache(&engine, arguments[1]);
    create_post_processing(&engine);
    create_skies(&engine);
    printf("%u of %u pipelines from the cache\n", engine.hits, engine.created);
    vkDestroyPipelineCache(engine.device, engine.cache, NULL);
    vkDestroyDevice(engine.device, NULL);
    vkDestroyInstance(engine.instance, NULL);
    return engine.hits == engine.created ? ALL_HIT : SOME_COMPILED;
}
