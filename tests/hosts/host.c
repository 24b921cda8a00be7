/* An application of its own, to prove a cache file from outside: it opens its instance and device by itself, with exactly
 * what the command line names, and creates pipelines from SPIR-V by create infos that are written out here by hand. Of a
 * cache file it takes the driver's bytes only. Each pipeline equals the one of the same name in
 * orchestrator/sets/sample/sample.toml, so a driver makes the same keys of both, as far as instance and device are the same too.
 *
 *   host --list              the pipelines: name, kind, and the features that each needs; no device is opened
 *   host --list-features     the feature structures that are known here: sType, extensions, members; likewise
 *   host --shaders DIR [--device TEXT] [--api-version 1.3] [--application-name TEXT] [--application-version N]
 *        [--engine-name TEXT] [--engine-version N] [--extension NAME]... [--feature STRUCTURE::MEMBER]...
 *        [--load FILE [--forbid] | --save FILE | --forbid]
 *
 *   --device TEXT   the first physical device whose name, or whose driver's name, contains it; else the first of all
 *   --feature ...   also enables the extensions that the structure comes from; twice is once
 *   --load FILE     creates each pipeline with a cache of its own that starts with the file's bytes, so that none can
 *                   find what another one compiled; a hit is what VkPipelineCreationFeedback calls one
 *   --forbid        also creates with VK_PIPELINE_CREATE_FAIL_ON_PIPELINE_COMPILE_REQUIRED_BIT; a hit is what is created
 *                   then. Needs the feature pipelineCreationCacheControl, which the application has to name. Without
 *                   --load, no cache is passed at all: what is created then was in the driver's own
 *   --save FILE     creates all pipelines with one cache that starts empty, and writes vkGetPipelineCacheData
 *
 * stdout has one JSON object a pipeline and line: name, kind, result (a VkResult, or SKIPPED where a feature that it needs
 * was not named: then missing names it), hit, and feedback: what the creation feedback says, null where it says nothing.
 * A pipeline that links libraries creates these first, in the same cache; it hits where all of them do.
 *
 * Exit codes: 0 all that was tried was created, and hit where --load is given
 *             1 with --load or --forbid: something did not hit, or nothing was tried
 *             2 usage, or a file that cannot be read or written
 *             3 no device, or one that lacks a feature, an extension or a version that was named
 *             4 the driver refused something else
 *
 * Every object lives until the end, where all are destroyed. */
#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vulkan/vulkan.h>

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

enum exit_code { GOOD = 0, MISSED = 1, USAGE = 2, NO_DEVICE = 3, REFUSED = 4 };

_Noreturn static void die(enum exit_code code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("host: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die(REFUSED, "no memory");
    return memory;
}

static void check(VkResult result, const char *command) {
    if (result < 0) die(REFUSED, "%s: VkResult %d", command, (int)result);
}

/* --- features ------------------------------------------------------------------------------------------------- */

/* Structures are known by their numbers and members and not by their C types, because headers may be older than they are:
 * each is an sType, a pNext, and VkBool32s. */
enum { MOST_MEMBERS = 56 };

struct feature_structure {
    const char *name;
    uint32_t s_type;
    uint32_t core;          /* the version since which no extension is needed; 0 for none */
    const char *extensions; /* and what these depend on beyond Vulkan 1.2 */
    const char *members;    /* in order */
};

static const char *const BASE = "VkPhysicalDeviceFeatures";
static const struct feature_structure BASE_FEATURES = {
    "VkPhysicalDeviceFeatures", 0, VK_API_VERSION_1_0, "",
    "robustBufferAccess fullDrawIndexUint32 imageCubeArray independentBlend geometryShader tessellationShader "
    "sampleRateShading dualSrcBlend logicOp multiDrawIndirect drawIndirectFirstInstance depthClamp depthBiasClamp "
    "fillModeNonSolid depthBounds wideLines largePoints alphaToOne multiViewport samplerAnisotropy textureCompressionETC2 "
    "textureCompressionASTC_LDR textureCompressionBC occlusionQueryPrecise pipelineStatisticsQuery "
    "vertexPipelineStoresAndAtomics fragmentStoresAndAtomics shaderTessellationAndGeometryPointSize "
    "shaderImageGatherExtended shaderStorageImageExtendedFormats shaderStorageImageMultisample "
    "shaderStorageImageReadWithoutFormat shaderStorageImageWriteWithoutFormat shaderUniformBufferArrayDynamicIndexing "
    "shaderSampledImageArrayDynamicIndexing shaderStorageBufferArrayDynamicIndexing "
    "shaderStorageImageArrayDynamicIndexing shaderClipDistance shaderCullDistance shaderFloat64 shaderInt64 shaderInt16 "
    "shaderResourceResidency shaderResourceMinLod sparseBinding sparseResidencyBuffer sparseResidencyImage2D "
    "sparseResidencyImage3D sparseResidency2Samples sparseResidency4Samples sparseResidency8Samples "
    "sparseResidency16Samples sparseResidencyAliased variableMultisampleRate inheritedQueries"};

#define V1_4 VK_MAKE_API_VERSION(0, 1, 4, 0) /* headers of 1.3 do not have it */

static const struct feature_structure STRUCTURES[] = {
    {"VkPhysicalDeviceRobustness2FeaturesEXT", 1000286000, 0, "VK_EXT_robustness2",
     "robustBufferAccess2 robustImageAccess2 nullDescriptor"},
    {"VkPhysicalDeviceImageRobustnessFeatures", 1000335000, VK_API_VERSION_1_3, "VK_EXT_image_robustness",
     "robustImageAccess"},
    {"VkPhysicalDevicePipelineRobustnessFeatures", 1000068001, V1_4, "VK_EXT_pipeline_robustness", "pipelineRobustness"},
    {"VkPhysicalDeviceShaderObjectFeaturesEXT", 1000482000, 0, "VK_EXT_shader_object", "shaderObject"},
    {"VkPhysicalDeviceDescriptorBufferFeaturesEXT", 1000316002, 0, "VK_EXT_descriptor_buffer",
     "descriptorBuffer descriptorBufferCaptureReplay descriptorBufferImageLayoutIgnored descriptorBufferPushDescriptors"},
    {"VkPhysicalDeviceMeshShaderFeaturesEXT", 1000328000, 0, "VK_EXT_mesh_shader",
     "taskShader meshShader multiviewMeshShader primitiveFragmentShadingRateMeshShader meshShaderQueries"},
    {"VkPhysicalDeviceFragmentShadingRateFeaturesKHR", 1000226003, 0, "VK_KHR_fragment_shading_rate",
     "pipelineFragmentShadingRate primitiveFragmentShadingRate attachmentFragmentShadingRate"},
    {"VkPhysicalDeviceFragmentShadingRateEnumsFeaturesNV", 1000326001, 0,
     "VK_NV_fragment_shading_rate_enums VK_KHR_fragment_shading_rate",
     "fragmentShadingRateEnums supersampleFragmentShadingRates noInvocationFragmentShadingRates"},
    {"VkPhysicalDeviceMaintenance4Features", 1000413000, VK_API_VERSION_1_3, "VK_KHR_maintenance4", "maintenance4"},
    {"VkPhysicalDeviceMaintenance5Features", 1000470000, V1_4, "VK_KHR_maintenance5", "maintenance5"},
    {"VkPhysicalDeviceMaintenance6Features", 1000545000, V1_4, "VK_KHR_maintenance6", "maintenance6"},
    {"VkPhysicalDeviceMaintenance7FeaturesKHR", 1000562000, 0, "VK_KHR_maintenance7", "maintenance7"},
    {"VkPhysicalDeviceMaintenance8FeaturesKHR", 1000574000, 0, "VK_KHR_maintenance8", "maintenance8"},
    {"VkPhysicalDeviceMaintenance9FeaturesKHR", 1000584000, 0, "VK_KHR_maintenance9", "maintenance9"},
    {"VkPhysicalDevicePipelineCreationCacheControlFeatures", 1000297000, VK_API_VERSION_1_3,
     "VK_EXT_pipeline_creation_cache_control", "pipelineCreationCacheControl"},
    {"VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", 1000269000, 0, "VK_KHR_pipeline_executable_properties",
     "pipelineExecutableInfo"},
    {"VkPhysicalDevicePipelineBinaryFeaturesKHR", 1000483000, 0, "VK_KHR_pipeline_binary VK_KHR_maintenance5",
     "pipelineBinaries"},
    {"VkPhysicalDeviceShaderModuleIdentifierFeaturesEXT", 1000462000, 0,
     "VK_EXT_shader_module_identifier VK_EXT_pipeline_creation_cache_control", "shaderModuleIdentifier"},
    {"VkPhysicalDeviceDynamicRenderingFeatures", 1000044003, VK_API_VERSION_1_3, "VK_KHR_dynamic_rendering",
     "dynamicRendering"},
    {"VkPhysicalDeviceGraphicsPipelineLibraryFeaturesEXT", 1000320000, 0,
     "VK_EXT_graphics_pipeline_library VK_KHR_pipeline_library", "graphicsPipelineLibrary"},
    {"VkPhysicalDeviceRayTracingPipelineFeaturesKHR", 1000347000, 0,
     "VK_KHR_ray_tracing_pipeline VK_KHR_pipeline_library VK_KHR_acceleration_structure VK_KHR_deferred_host_operations",
     "rayTracingPipeline rayTracingPipelineShaderGroupHandleCaptureReplay "
     "rayTracingPipelineShaderGroupHandleCaptureReplayMixed rayTracingPipelineTraceRaysIndirect rayTraversalPrimitiveCulling"},
    {"VkPhysicalDeviceAccelerationStructureFeaturesKHR", 1000150013, 0,
     "VK_KHR_acceleration_structure VK_KHR_deferred_host_operations",
     "accelerationStructure accelerationStructureCaptureReplay accelerationStructureIndirectBuild "
     "accelerationStructureHostCommands descriptorBindingAccelerationStructureUpdateAfterBind"},
    {"VkPhysicalDeviceRayQueryFeaturesKHR", 1000348013, 0,
     "VK_KHR_ray_query VK_KHR_acceleration_structure VK_KHR_deferred_host_operations", "rayQuery"},
    {"VkPhysicalDeviceBufferDeviceAddressFeatures", 1000257000, VK_API_VERSION_1_2, "VK_KHR_buffer_device_address",
     "bufferDeviceAddress bufferDeviceAddressCaptureReplay bufferDeviceAddressMultiDevice"},
    {"VkPhysicalDeviceSubgroupSizeControlFeatures", 1000225002, VK_API_VERSION_1_3, "VK_EXT_subgroup_size_control",
     "subgroupSizeControl computeFullSubgroups"},
    {"VkPhysicalDeviceMultiviewFeatures", 1000053001, VK_API_VERSION_1_1, "VK_KHR_multiview",
     "multiview multiviewGeometryShader multiviewTessellationShader"},
    {"VkPhysicalDeviceVertexInputDynamicStateFeaturesEXT", 1000352000, 0, "VK_EXT_vertex_input_dynamic_state",
     "vertexInputDynamicState"},
    {"VkPhysicalDeviceExtendedDynamicState2FeaturesEXT", 1000377000, 0, "VK_EXT_extended_dynamic_state2",
     "extendedDynamicState2 extendedDynamicState2LogicOp extendedDynamicState2PatchControlPoints"},
    {"VkPhysicalDevicePrimitivesGeneratedQueryFeaturesEXT", 1000382000, 0,
     "VK_EXT_primitives_generated_query VK_EXT_transform_feedback",
     "primitivesGeneratedQuery primitivesGeneratedQueryWithRasterizerDiscard primitivesGeneratedQueryWithNonZeroStreams"},
    {"VkPhysicalDeviceImage2DViewOf3DFeaturesEXT", 1000393000, 0, "VK_EXT_image_2d_view_of_3d",
     "image2DViewOf3D sampler2DViewOf3D"},
    {"VkPhysicalDeviceVertexAttributeDivisorFeatures", 1000190002, V1_4, "VK_KHR_vertex_attribute_divisor",
     "vertexAttributeInstanceRateDivisor vertexAttributeInstanceRateZeroDivisor"},
    {"VkPhysicalDeviceLineRasterizationFeatures", 1000259000, V1_4, "VK_EXT_line_rasterization",
     "rectangularLines bresenhamLines smoothLines stippledRectangularLines stippledBresenhamLines stippledSmoothLines"},
    {"VkPhysicalDeviceSynchronization2Features", 1000314007, VK_API_VERSION_1_3, "VK_KHR_synchronization2",
     "synchronization2"},
    {"VkPhysicalDeviceScalarBlockLayoutFeatures", 1000221000, VK_API_VERSION_1_2, "VK_EXT_scalar_block_layout",
     "scalarBlockLayout"},
    {"VkPhysicalDeviceTimelineSemaphoreFeatures", 1000207000, VK_API_VERSION_1_2, "VK_KHR_timeline_semaphore",
     "timelineSemaphore"},
};

/* A feature structure in a pNext chain. */
struct chained {
    VkStructureType s_type;
    void *next;
    VkBool32 members[MOST_MEMBERS];
};
_Static_assert(sizeof(VkPhysicalDeviceFeatures) <= sizeof(VkBool32[MOST_MEMBERS]), "VkPhysicalDeviceFeatures has grown");

/* Where the next word of a list begins, and its length; NULL where there is none. */
static const char *next_word(const char *list, size_t *length) {
    while (*list == ' ') list++;
    *length = strcspn(list, " ");
    return *length ? list : NULL;
}

static int word_index(const char *list, const char *word) {
    size_t length;
    int index = 0;
    for (const char *at = list; (at = next_word(at, &length)); at += length, index++)
        if (strlen(word) == length && !memcmp(at, word, length)) return index;
    return -1;
}

/* Length of a structure's name without the suffix that it loses when it is promoted. */
static size_t stem_length(const char *name, size_t length) {
    bool vendor = length > 3 && (!memcmp(name + length - 3, "KHR", 3) || !memcmp(name + length - 3, "EXT", 3));
    return vendor ? length - 3 : length;
}

/* Index in STRUCTURES, or -1; any of the names that a structure has had will do. */
static int structure_index(const char *name, size_t length) {
    for (uint32_t i = 0; i < COUNT(STRUCTURES); i++) {
        const char *known = STRUCTURES[i].name;
        size_t stem = stem_length(known, strlen(known));
        if (stem == stem_length(name, length) && !memcmp(known, name, stem)) return (int)i;
    }
    return -1;
}

/* The features that an application enables: the base ones, and those of each structure. */
struct features {
    struct chained base;
    struct chained structures[COUNT(STRUCTURES)];
    bool used[COUNT(STRUCTURES)];
};

/* The word of a feature, "Structure::member"; dies where it is not known. */
static VkBool32 *feature(struct features *features, const char *text) {
    const char *separator = strstr(text, "::");
    if (!separator) die(USAGE, "--feature %s: STRUCTURE::MEMBER is expected", text);
    size_t length = (size_t)(separator - text);
    if (length == strlen(BASE) && !memcmp(text, BASE, length)) {
        int member = word_index(BASE_FEATURES.members, separator + 2);
        if (member < 0) die(USAGE, "%s has no member %s", BASE, separator + 2);
        return &features->base.members[member];
    }
    int index = structure_index(text, length);
    if (index < 0) die(USAGE, "--feature %s: a structure that is not in the table of this program", text);
    int member = word_index(STRUCTURES[index].members, separator + 2);
    if (member < 0) die(USAGE, "%s has no member %s", STRUCTURES[index].name, separator + 2);
    return &features->structures[index].members[member];
}

static void enable(struct features *features, const char *text) {
    *feature(features, text) = VK_TRUE;
    int index = structure_index(text, (size_t)(strstr(text, "::") - text));
    if (index >= 0) features->used[index] = true;
}

/* The first feature of a list that is not enabled, by index of its word; -1 where all are. */
static int first_missing(struct features *features, const char *needs) {
    size_t length;
    int index = 0;
    for (const char *at = needs; (at = next_word(at, &length)); at += length, index++) {
        char one[128] = {0};
        memcpy(one, at, length < sizeof one ? length : sizeof one - 1);
        if (!*feature(features, one)) return index;
    }
    return -1;
}

/* Chains the structures that are used behind VkPhysicalDeviceFeatures2. */
static void chain(struct features *features) {
    features->base.s_type = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    void **end = &features->base.next;
    for (uint32_t i = 0; i < COUNT(STRUCTURES); i++) {
        if (!features->used[i]) continue;
        features->structures[i].s_type = (VkStructureType)STRUCTURES[i].s_type;
        *end = &features->structures[i];
        end = &features->structures[i].next;
    }
    *end = NULL;
}

/* --- the command line ----------------------------------------------------------------------------------------- */

enum { MOST_EXTENSIONS = 64 };

struct options {
    bool list, list_features, forbid;
    const char *shaders, *device, *load, *save;
    VkApplicationInfo application;
    struct features features;
    const char *extensions[MOST_EXTENSIONS];
    uint32_t extension_count;
};

static void add_extension(struct options *options, const char *name, size_t length) {
    for (uint32_t i = 0; i < options->extension_count; i++)
        if (strlen(options->extensions[i]) == length && !memcmp(options->extensions[i], name, length)) return;
    if (options->extension_count == MOST_EXTENSIONS) die(USAGE, "more than %d extensions", MOST_EXTENSIONS);
    char *copy = allocate(length + 1, 1);
    memcpy(copy, name, length);
    options->extensions[options->extension_count++] = copy;
}

static uint32_t read_number(const char *text) {
    char *end;
    unsigned long value = strtoul(text, &end, 0);
    if (!*text || *end || value > UINT32_MAX) die(USAGE, "%s: a number is expected", text);
    return (uint32_t)value;
}

static uint32_t read_version(const char *text) {
    unsigned major, minor, patch = 0;
    if (sscanf(text, "%u.%u.%u", &major, &minor, &patch) < 2) die(USAGE, "%s: a version such as 1.3 is expected", text);
    uint32_t version = VK_MAKE_API_VERSION(0, major, minor, patch);
    if (version < VK_API_VERSION_1_2) die(USAGE, "--api-version %s: 1.2 at least, which the shaders need", text);
    return version;
}

static void read_options(struct options *options, int count, char **arguments) {
    options->application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    options->application.apiVersion = VK_API_VERSION_1_3;
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];
        if (!strcmp(name, "--list")) { options->list = true; continue; }
        if (!strcmp(name, "--list-features")) { options->list_features = true; continue; }
        if (!strcmp(name, "--forbid")) { options->forbid = true; continue; }
        if (++i == count) die(USAGE, "%s: unknown, or its value is missing", name);
        const char *value = arguments[i];
        if (!strcmp(name, "--shaders")) options->shaders = value;
        else if (!strcmp(name, "--device")) options->device = value;
        else if (!strcmp(name, "--load")) options->load = value;
        else if (!strcmp(name, "--save")) options->save = value;
        else if (!strcmp(name, "--api-version")) options->application.apiVersion = read_version(value);
        else if (!strcmp(name, "--application-name")) options->application.pApplicationName = value;
        else if (!strcmp(name, "--application-version")) options->application.applicationVersion = read_number(value);
        else if (!strcmp(name, "--engine-name")) options->application.pEngineName = value;
        else if (!strcmp(name, "--engine-version")) options->application.engineVersion = read_number(value);
        else if (!strcmp(name, "--extension")) add_extension(options, value, strlen(value));
        else if (!strcmp(name, "--feature")) enable(&options->features, value);
        else die(USAGE, "%s: unknown option", name);
    }
    if (options->list || options->list_features) return;
    if (!options->shaders) die(USAGE, "--shaders is missing");
    if (options->load && options->save) die(USAGE, "--load and --save exclude each other");
    const char *control = "VkPhysicalDevicePipelineCreationCacheControlFeatures::pipelineCreationCacheControl";
    if (options->forbid && !*feature(&options->features, control)) die(USAGE, "--forbid needs --feature %s", control);
}

/* --- files ---------------------------------------------------------------------------------------------------- */

struct bytes {
    void *data;
    size_t size;
};

static struct bytes read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) die(USAGE, "%s: cannot be opened", path);
    if (fseek(file, 0, SEEK_END)) die(USAGE, "%s: no plain file", path);
    long size = ftell(file);
    rewind(file);
    struct bytes content = {allocate((size_t)(size < 0 ? 0 : size), 1), (size_t)(size < 0 ? 0 : size)};
    if (size < 0 || fread(content.data, 1, content.size, file) != content.size) die(USAGE, "%s: cannot be read", path);
    fclose(file);
    return content;
}

static void write_file(const char *path, struct bytes content) {
    FILE *file = fopen(path, "wb");
    if (!file) die(USAGE, "%s: cannot be created", path);
    bool whole = fwrite(content.data, 1, content.size, file) == content.size;
    if (fclose(file) || !whole) die(USAGE, "%s: cannot be written", path);
}

/* --- instance and device -------------------------------------------------------------------------------------- */

enum object_kind { SHADER_MODULE, SAMPLER, SET_LAYOUT, PIPELINE_LAYOUT, RENDER_PASS, PIPELINE };

struct object {
    enum object_kind kind;
    uint64_t handle;
    struct object *before;
};

struct host {
    struct options options;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    PFN_vkCreateRayTracingPipelinesKHR create_ray_tracing;
    struct object *objects; /* to destroy, the youngest first */
};

/* Handles that are not dispatchable are pointers or 64-bit integers, as the platform has it. */
#define KEEP(host, kind, object) keep((host), (kind), (uint64_t)(object))

static void keep(struct host *host, enum object_kind kind, uint64_t handle) {
    struct object *object = allocate(1, sizeof *object);
    *object = (struct object){kind, handle, host->objects};
    host->objects = object;
}

static void close_host(struct host *host) {
    for (struct object *each = host->objects, *before; each; each = before) {
        switch (each->kind) {
        case SHADER_MODULE: vkDestroyShaderModule(host->device, (VkShaderModule)each->handle, NULL); break;
        case SAMPLER: vkDestroySampler(host->device, (VkSampler)each->handle, NULL); break;
        case SET_LAYOUT: vkDestroyDescriptorSetLayout(host->device, (VkDescriptorSetLayout)each->handle, NULL); break;
        case PIPELINE_LAYOUT: vkDestroyPipelineLayout(host->device, (VkPipelineLayout)each->handle, NULL); break;
        case RENDER_PASS: vkDestroyRenderPass(host->device, (VkRenderPass)each->handle, NULL); break;
        case PIPELINE: vkDestroyPipeline(host->device, (VkPipeline)each->handle, NULL); break;
        }
        before = each->before;
        free(each);
    }
    vkDestroyDevice(host->device, NULL);
    vkDestroyInstance(host->instance, NULL);
}

static bool contains(const char *text, const char *part) {
    for (; *text; text++) {
        size_t i = 0;
        while (part[i] && tolower((unsigned char)text[i]) == tolower((unsigned char)part[i])) i++;
        if (!part[i]) return true;
    }
    return !*part;
}

static void pick_device(struct host *host) {
    uint32_t count = 0;
    VkResult result = vkEnumeratePhysicalDevices(host->instance, &count, NULL);
    if (result < 0 || !count) die(NO_DEVICE, "the loader found no device (VkResult %d)", (int)result);
    VkPhysicalDevice *all = allocate(count, sizeof *all);
    check(vkEnumeratePhysicalDevices(host->instance, &count, all), "vkEnumeratePhysicalDevices");
    for (uint32_t i = 0; i < count && !host->physical; i++) {
        VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
        VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &driver, {0}};
        vkGetPhysicalDeviceProperties2(all[i], &properties);
        const char *wanted = host->options.device;
        if (!wanted || contains(properties.properties.deviceName, wanted) || contains(driver.driverName, wanted))
            host->physical = all[i];
    }
    free(all);
    if (!host->physical) die(NO_DEVICE, "none of %u devices is called %s", count, host->options.device);
}

/* The version that the application can use: its own or the device's, whichever is older. */
static uint32_t usable_version(const struct host *host) {
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(host->physical, &properties);
    uint32_t own = host->options.application.apiVersion;
    return own < properties.apiVersion ? own : properties.apiVersion;
}

static void check_features(struct host *host) {
    struct features offered = {0};
    memcpy(offered.used, host->options.features.used, sizeof offered.used);
    chain(&offered);
    vkGetPhysicalDeviceFeatures2(host->physical, (VkPhysicalDeviceFeatures2 *)(void *)&offered.base);
    for (uint32_t i = 0; i <= COUNT(STRUCTURES); i++) {
        const struct chained *wanted = i ? &host->options.features.structures[i - 1] : &host->options.features.base;
        const struct chained *has = i ? &offered.structures[i - 1] : &offered.base;
        for (uint32_t member = 0; member < MOST_MEMBERS; member++)
            if (wanted->members[member] && !has->members[member])
                die(NO_DEVICE, "the device lacks member %u of %s", member, i ? STRUCTURES[i - 1].name : BASE);
    }
}

static void check_extensions(const struct host *host) {
    uint32_t count = 0;
    check(vkEnumerateDeviceExtensionProperties(host->physical, NULL, &count, NULL), "vkEnumerateDeviceExtensionProperties");
    VkExtensionProperties *all = allocate(count, sizeof *all);
    check(vkEnumerateDeviceExtensionProperties(host->physical, NULL, &count, all), "vkEnumerateDeviceExtensionProperties");
    for (uint32_t i = 0; i < host->options.extension_count; i++) {
        bool found = false;
        for (uint32_t k = 0; k < count && !found; k++)
            found = !strcmp(all[k].extensionName, host->options.extensions[i]);
        if (!found) die(NO_DEVICE, "the device lacks the extension %s", host->options.extensions[i]);
    }
    free(all);
}

static void open_host(struct host *host) {
    VkInstanceCreateInfo instance = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                     .pApplicationInfo = &host->options.application};
    VkResult result = vkCreateInstance(&instance, NULL, &host->instance);
    if (result < 0) die(NO_DEVICE, "vkCreateInstance: VkResult %d", (int)result);
    pick_device(host);
    uint32_t version = usable_version(host);
    if (version < VK_API_VERSION_1_2) die(NO_DEVICE, "the device is older than Vulkan 1.2, which the shaders need");
    /* Feedback is how a hit is told, so it is asked for even where the application names no extension at all. */
    if (version < VK_API_VERSION_1_3)
        add_extension(&host->options, VK_EXT_PIPELINE_CREATION_FEEDBACK_EXTENSION_NAME,
                      strlen(VK_EXT_PIPELINE_CREATION_FEEDBACK_EXTENSION_NAME));
    for (uint32_t i = 0; i < COUNT(STRUCTURES); i++) {
        const struct feature_structure *each = &STRUCTURES[i];
        if (!host->options.features.used[i] || (each->core && each->core <= version)) continue;
        size_t length;
        for (const char *at = each->extensions; (at = next_word(at, &length)); at += length)
            add_extension(&host->options, at, length);
    }
    check_extensions(host);
    check_features(host);
    chain(&host->options.features);
    float priority = 1.0f;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkDeviceCreateInfo device = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                 .pNext = &host->options.features.base,
                                 .queueCreateInfoCount = 1,
                                 .pQueueCreateInfos = &queue,
                                 .enabledExtensionCount = host->options.extension_count,
                                 .ppEnabledExtensionNames = host->options.extensions};
    check(vkCreateDevice(host->physical, &device, NULL, &host->device), "vkCreateDevice");
    PFN_vkVoidFunction create = vkGetDeviceProcAddr(host->device, "vkCreateRayTracingPipelinesKHR");
    host->create_ray_tracing = (PFN_vkCreateRayTracingPipelinesKHR)create;
}

/* --- what pipelines are made of ------------------------------------------------------------------------------- */

/* Creating one pipeline, with the libraries that it links. */
struct attempt {
    struct host *host;
    VkPipelineCache cache;
    VkPipelineCreateFlags flags;
    bool told; /* whether the feedback of all creations is valid */
    bool hit;  /* whether it calls all of them hits */
};

struct constant {
    uint32_t id, value;
};

/* Specialization constants as two arguments: what they are, and how many. */
#define CONSTANTS(...) (const struct constant[]){__VA_ARGS__}, COUNT(((const struct constant[]){__VA_ARGS__}))
#define NO_CONSTANTS NULL, 0

static VkPipelineShaderStageCreateInfo stage(struct host *host, VkShaderStageFlagBits bit, const char *file,
                                             const struct constant *constants, uint32_t count) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s.spv", host->options.shaders, file) >= (int)sizeof path)
        die(USAGE, "%s: too long", host->options.shaders);
    struct bytes code = read_file(path);
    VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = code.size,
                                     .pCode = code.data};
    VkShaderModule module;
    check(vkCreateShaderModule(host->device, &info, NULL, &module), "vkCreateShaderModule");
    KEEP(host, SHADER_MODULE, module);
    free(code.data);
    VkSpecializationInfo *specialization = NULL;
    if (count) { /* lives to the end, as create infos point to it */
        specialization = allocate(1, sizeof *specialization);
        VkSpecializationMapEntry *entries = allocate(count, sizeof *entries);
        uint32_t *data = allocate(count, sizeof *data);
        for (uint32_t i = 0; i < count; i++) {
            entries[i] = (VkSpecializationMapEntry){constants[i].id, i * (uint32_t)sizeof *data, sizeof *data};
            data[i] = constants[i].value;
        }
        *specialization = (VkSpecializationInfo){count, entries, count * sizeof *data, data};
    }
    return (VkPipelineShaderStageCreateInfo){.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                             .stage = bit,
                                             .module = module,
                                             .pName = "main",
                                             .pSpecializationInfo = specialization};
}

#define BINDINGS(...) \
    (const VkDescriptorSetLayoutBinding[]){__VA_ARGS__}, COUNT(((const VkDescriptorSetLayoutBinding[]){__VA_ARGS__}))

static VkDescriptorSetLayout set_layout(struct host *host, const VkDescriptorSetLayoutBinding *bindings, uint32_t count) {
    VkDescriptorSetLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                            .bindingCount = count,
                                            .pBindings = bindings};
    VkDescriptorSetLayout layout;
    check(vkCreateDescriptorSetLayout(host->device, &info, NULL, &layout), "vkCreateDescriptorSetLayout");
    KEEP(host, SET_LAYOUT, layout);
    return layout;
}

/* A layout; without push constants where their size is 0. */
static VkPipelineLayout pipeline_layout(struct host *host, const VkDescriptorSetLayout *sets, uint32_t count,
                                        VkShaderStageFlags push_stages, uint32_t push_size) {
    VkPushConstantRange range = {push_stages, 0, push_size};
    VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                       .setLayoutCount = count,
                                       .pSetLayouts = sets,
                                       .pushConstantRangeCount = push_size ? 1 : 0,
                                       .pPushConstantRanges = push_size ? &range : NULL};
    VkPipelineLayout layout;
    check(vkCreatePipelineLayout(host->device, &info, NULL, &layout), "vkCreatePipelineLayout");
    KEEP(host, PIPELINE_LAYOUT, layout);
    return layout;
}

static VkSampler sampler(struct host *host, const VkSamplerCreateInfo *info) {
    VkSampler made;
    check(vkCreateSampler(host->device, info, NULL, &made), "vkCreateSampler");
    KEEP(host, SAMPLER, made);
    return made;
}

static VkRenderPass render_pass(struct host *host, const VkRenderPassCreateInfo2 *info) {
    VkRenderPass made;
    check(vkCreateRenderPass2(host->device, info, NULL, &made), "vkCreateRenderPass2");
    KEEP(host, RENDER_PASS, made);
    return made;
}

/* Creation feedback, in front of whatever a create info chains. */
struct feedback {
    VkPipelineCreationFeedback whole;
    VkPipelineCreationFeedbackCreateInfo info;
};

static void ask_feedback(struct feedback *feedback, const void **next) {
    *feedback = (struct feedback){.info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CREATION_FEEDBACK_CREATE_INFO,
                                           .pNext = *next,
                                           .pPipelineCreationFeedback = &feedback->whole}};
    *next = &feedback->info;
}

static void take_feedback(struct attempt *attempt, const struct feedback *feedback) {
    VkPipelineCreationFeedbackFlags flags = feedback->whole.flags;
    attempt->told = attempt->told && (flags & VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT);
    attempt->hit = attempt->hit && (flags & VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT);
}

static VkResult create_compute(struct attempt *attempt, VkComputePipelineCreateInfo info) {
    struct feedback feedback;
    VkPipeline pipeline = VK_NULL_HANDLE;
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.flags |= attempt->flags;
    info.basePipelineIndex = -1;
    ask_feedback(&feedback, &info.pNext);
    VkResult result = vkCreateComputePipelines(attempt->host->device, attempt->cache, 1, &info, NULL, &pipeline);
    take_feedback(attempt, &feedback);
    if (pipeline) KEEP(attempt->host, PIPELINE, pipeline);
    return result;
}

static VkResult create_graphics(struct attempt *attempt, VkGraphicsPipelineCreateInfo info, VkPipeline *created) {
    struct feedback feedback;
    VkPipeline pipeline = VK_NULL_HANDLE;
    info.sType = VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_CREATE_INFO;
    info.flags |= attempt->flags;
    info.basePipelineIndex = -1;
    ask_feedback(&feedback, &info.pNext);
    VkResult result = vkCreateGraphicsPipelines(attempt->host->device, attempt->cache, 1, &info, NULL, &pipeline);
    /* What has no stages and only links is made of its libraries: drivers that link without compiling say nothing of it. */
    bool only_links = !info.stageCount && !(info.flags & VK_PIPELINE_CREATE_LIBRARY_BIT_KHR);
    if (!only_links || feedback.whole.flags) take_feedback(attempt, &feedback);
    if (pipeline) KEEP(attempt->host, PIPELINE, pipeline);
    if (created) *created = pipeline;
    return result;
}

static VkResult create_ray_tracing(struct attempt *attempt, VkRayTracingPipelineCreateInfoKHR info, VkPipeline *created) {
    struct feedback feedback;
    VkPipeline pipeline = VK_NULL_HANDLE;
    info.sType = VK_STRUCTURE_TYPE_RAY_TRACING_PIPELINE_CREATE_INFO_KHR;
    info.flags |= attempt->flags;
    info.basePipelineIndex = -1;
    ask_feedback(&feedback, &info.pNext);
    struct host *host = attempt->host;
    VkResult result =
        host->create_ray_tracing(host->device, VK_NULL_HANDLE, attempt->cache, 1, &info, NULL, &pipeline);
    take_feedback(attempt, &feedback);
    if (pipeline) KEEP(attempt->host, PIPELINE, pipeline);
    if (created) *created = pipeline;
    return result;
}

/* --- compute -------------------------------------------------------------------------------------------------- */

/* Short names, as each is written many times. */
#define UNIFORM_BUFFER VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
#define STORAGE_BUFFER VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
#define STORAGE_IMAGE VK_DESCRIPTOR_TYPE_STORAGE_IMAGE
#define TEXTURE VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER
#define INPUT_ATTACHMENT VK_DESCRIPTOR_TYPE_INPUT_ATTACHMENT
#define ACCELERATION_STRUCTURE VK_DESCRIPTOR_TYPE_ACCELERATION_STRUCTURE_KHR
#define COMPUTE VK_SHADER_STAGE_COMPUTE_BIT
#define VERTEX VK_SHADER_STAGE_VERTEX_BIT
#define CONTROL VK_SHADER_STAGE_TESSELLATION_CONTROL_BIT
#define EVALUATION VK_SHADER_STAGE_TESSELLATION_EVALUATION_BIT
#define GEOMETRY VK_SHADER_STAGE_GEOMETRY_BIT
#define FRAGMENT VK_SHADER_STAGE_FRAGMENT_BIT
#define TASK VK_SHADER_STAGE_TASK_BIT_EXT
#define MESH VK_SHADER_STAGE_MESH_BIT_EXT
#define RAYGEN VK_SHADER_STAGE_RAYGEN_BIT_KHR
#define ANY_HIT VK_SHADER_STAGE_ANY_HIT_BIT_KHR
#define CLOSEST_HIT VK_SHADER_STAGE_CLOSEST_HIT_BIT_KHR
#define MISS VK_SHADER_STAGE_MISS_BIT_KHR
#define INTERSECTION VK_SHADER_STAGE_INTERSECTION_BIT_KHR
#define CALLABLE VK_SHADER_STAGE_CALLABLE_BIT_KHR

static VkResult compute_particles(struct attempt *attempt) {
    struct host *host = attempt->host;
    VkDescriptorSetLayout set = set_layout(host, BINDINGS({0, STORAGE_BUFFER, 1, COMPUTE, NULL},
                                                          {1, UNIFORM_BUFFER, 1, COMPUTE, NULL},
                                                          {2, STORAGE_BUFFER, 1, COMPUTE, NULL}));
    return create_compute(
        attempt, (VkComputePipelineCreateInfo){
                     .stage = stage(host, COMPUTE, "particles.comp", CONSTANTS({0, 64}, {1, 4}, {2, VK_TRUE})),
                     .layout = pipeline_layout(host, &set, 1, COMPUTE, 32)});
}

static VkResult compute_blur(struct attempt *attempt) {
    struct host *host = attempt->host;
    VkDescriptorSetLayout set =
        set_layout(host, BINDINGS({0, TEXTURE, 1, COMPUTE, NULL}, {1, STORAGE_IMAGE, 1, COMPUTE, NULL}));
    return create_compute(attempt,
                          (VkComputePipelineCreateInfo){
                              .stage = stage(host, COMPUTE, "blur.comp", CONSTANTS({0, 128}, {1, 8}, {2, VK_TRUE})),
                              .layout = pipeline_layout(host, &set, 1, COMPUTE, 4)});
}

static VkResult compute_tonemap(struct attempt *attempt) {
    struct host *host = attempt->host;
    VkDescriptorSetLayout set =
        set_layout(host, BINDINGS({0, TEXTURE, 1, COMPUTE, NULL}, {1, STORAGE_IMAGE, 1, COMPUTE, NULL},
                                  {2, STORAGE_BUFFER, 1, COMPUTE, NULL}));
    return create_compute(
        attempt, (VkComputePipelineCreateInfo){
                     .stage = stage(host, COMPUTE, "tonemap.comp", CONSTANTS({0, 3}, {1, VK_TRUE}, {2, VK_TRUE})),
                     .layout = pipeline_layout(host, &set, 1, COMPUTE, 56)});
}

static VkResult compute_prefix_sum_wave32(struct attempt *attempt) {
    struct host *host = attempt->host;
    VkDescriptorSetLayout set = set_layout(host, BINDINGS({0, STORAGE_BUFFER, 1, COMPUTE, NULL},
                                                          {1, STORAGE_BUFFER, 1, COMPUTE, NULL},
                                                          {2, STORAGE_BUFFER, 1, COMPUTE, NULL}));
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO, .requiredSubgroupSize = 32};
    VkComputePipelineCreateInfo info = {.stage = stage(host, COMPUTE, "prefix_sum.comp", CONSTANTS({0, 256})),
                                        .layout = pipeline_layout(host, &set, 1, COMPUTE, 4)};
    info.stage.pNext = &size;
    return create_compute(attempt, info);
}

/* --- graphics ------------------------------------------------------------------------------------------------- */

/* All states of a graphics pipeline, as the sample has them where nothing else is said. start() fills them; a pipeline says
 * what differs and points its create info to those that it has. */
struct graphics {
    VkPipelineShaderStageCreateInfo stages[4];
    VkVertexInputBindingDescription binding;
    VkVertexInputAttributeDescription attributes[6];
    VkPipelineVertexInputStateCreateInfo vertex_input;
    VkPipelineInputAssemblyStateCreateInfo input_assembly;
    VkPipelineTessellationStateCreateInfo tessellation;
    VkPipelineViewportStateCreateInfo viewport;
    VkPipelineRasterizationStateCreateInfo rasterization;
    VkPipelineMultisampleStateCreateInfo multisample;
    VkPipelineDepthStencilStateCreateInfo depth_stencil;
    VkPipelineColorBlendAttachmentState blend;
    VkPipelineColorBlendStateCreateInfo color_blend;
    VkDynamicState dynamic_states[2];
    VkPipelineDynamicStateCreateInfo dynamic;
    VkFormat color_format;
    VkPipelineRenderingCreateInfo rendering;
    VkGraphicsPipelineCreateInfo info;
};

static void start(struct graphics *g) {
    const VkStencilOpState stencil = {.compareOp = VK_COMPARE_OP_ALWAYS, .compareMask = 0xff, .writeMask = 0xff};
    *g = (struct graphics){
        .vertex_input = {.sType = VK_STRUCTURE_TYPE_PIPELINE_VERTEX_INPUT_STATE_CREATE_INFO,
                         .pVertexBindingDescriptions = &g->binding,
                         .pVertexAttributeDescriptions = g->attributes},
        .input_assembly = {.sType = VK_STRUCTURE_TYPE_PIPELINE_INPUT_ASSEMBLY_STATE_CREATE_INFO,
                           .topology = VK_PRIMITIVE_TOPOLOGY_TRIANGLE_LIST},
        .tessellation = {.sType = VK_STRUCTURE_TYPE_PIPELINE_TESSELLATION_STATE_CREATE_INFO, .patchControlPoints = 3},
        .viewport = {.sType = VK_STRUCTURE_TYPE_PIPELINE_VIEWPORT_STATE_CREATE_INFO,
                     .viewportCount = 1,
                     .scissorCount = 1},
        .rasterization = {.sType = VK_STRUCTURE_TYPE_PIPELINE_RASTERIZATION_STATE_CREATE_INFO, .lineWidth = 1.0f},
        .multisample = {.sType = VK_STRUCTURE_TYPE_PIPELINE_MULTISAMPLE_STATE_CREATE_INFO,
                        .rasterizationSamples = VK_SAMPLE_COUNT_1_BIT},
        .depth_stencil = {.sType = VK_STRUCTURE_TYPE_PIPELINE_DEPTH_STENCIL_STATE_CREATE_INFO,
                          .depthTestEnable = VK_TRUE,
                          .depthWriteEnable = VK_TRUE,
                          .depthCompareOp = VK_COMPARE_OP_LESS_OR_EQUAL,
                          .front = stencil,
                          .back = stencil,
                          .maxDepthBounds = 1.0f},
        .blend = {.colorWriteMask = VK_COLOR_COMPONENT_R_BIT | VK_COLOR_COMPONENT_G_BIT | VK_COLOR_COMPONENT_B_BIT |
                                    VK_COLOR_COMPONENT_A_BIT},
        .color_blend = {.sType = VK_STRUCTURE_TYPE_PIPELINE_COLOR_BLEND_STATE_CREATE_INFO,
                        .attachmentCount = 1,
                        .pAttachments = &g->blend},
        .dynamic_states = {VK_DYNAMIC_STATE_VIEWPORT, VK_DYNAMIC_STATE_SCISSOR},
        .dynamic = {.sType = VK_STRUCTURE_TYPE_PIPELINE_DYNAMIC_STATE_CREATE_INFO,
                    .dynamicStateCount = 2,
                    .pDynamicStates = g->dynamic_states},
        .rendering = {.sType = VK_STRUCTURE_TYPE_PIPELINE_RENDERING_CREATE_INFO,
                      .pColorAttachmentFormats = &g->color_format},
        .info = {.pStages = g->stages, .pDynamicState = &g->dynamic},
    };
}

/* A whole pipeline that is rasterized from vertices and writes one colour attachment. */
static void start_whole(struct graphics *g, uint32_t stage_count) {
    start(g);
    g->info.stageCount = stage_count;
    g->info.pVertexInputState = &g->vertex_input;
    g->info.pInputAssemblyState = &g->input_assembly;
    g->info.pViewportState = &g->viewport;
    g->info.pRasterizationState = &g->rasterization;
    g->info.pMultisampleState = &g->multisample;
    g->info.pColorBlendState = &g->color_blend;
}

/* Draws without a render pass, in front of whatever the pipeline chains; no depth where the format is undefined. */
static void draw_into(struct graphics *g, VkFormat color, VkFormat depth) {
    g->color_format = color;
    g->rendering.colorAttachmentCount = 1;
    g->rendering.depthAttachmentFormat = depth;
    g->rendering.pNext = g->info.pNext;
    g->info.pNext = &g->rendering;
    if (depth != VK_FORMAT_UNDEFINED) g->info.pDepthStencilState = &g->depth_stencil;
}

static void vertex_input(struct graphics *g, uint32_t stride, const VkVertexInputAttributeDescription *attributes,
                         uint32_t count) {
    g->binding = (VkVertexInputBindingDescription){0, stride, VK_VERTEX_INPUT_RATE_VERTEX};
    memcpy(g->attributes, attributes, count * sizeof *attributes);
    g->vertex_input.vertexBindingDescriptionCount = 1;
    g->vertex_input.vertexAttributeDescriptionCount = count;
}

static const VkVertexInputAttributeDescription FULL[] = {
    {0, 0, VK_FORMAT_R32G32B32_SFLOAT, 0},     {1, 0, VK_FORMAT_R32G32B32_SFLOAT, 12},
    {2, 0, VK_FORMAT_R32G32B32A32_SFLOAT, 24}, {3, 0, VK_FORMAT_R32G32_SFLOAT, 40},
    {4, 0, VK_FORMAT_R16G16B16A16_UINT, 48},   {5, 0, VK_FORMAT_R32G32B32A32_SFLOAT, 56},
};

static void blend_alpha(VkPipelineColorBlendAttachmentState *blend) {
    blend->blendEnable = VK_TRUE;
    blend->srcColorBlendFactor = VK_BLEND_FACTOR_SRC_ALPHA;
    blend->dstColorBlendFactor = VK_BLEND_FACTOR_ONE_MINUS_SRC_ALPHA;
    blend->srcAlphaBlendFactor = VK_BLEND_FACTOR_ONE;
    blend->dstAlphaBlendFactor = VK_BLEND_FACTOR_ONE_MINUS_SRC_ALPHA;
}

/* The layout that all lit pipelines share, with immutable samplers. */
static VkPipelineLayout lit_layout(struct host *host) {
    VkSampler shadow = sampler(host, &(VkSamplerCreateInfo){.sType = VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO,
                                                            .magFilter = VK_FILTER_LINEAR,
                                                            .minFilter = VK_FILTER_LINEAR,
                                                            .addressModeU = VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_BORDER,
                                                            .addressModeV = VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_BORDER,
                                                            .maxAnisotropy = 1.0f,
                                                            .compareEnable = VK_TRUE,
                                                            .compareOp = VK_COMPARE_OP_LESS_OR_EQUAL,
                                                            .maxLod = VK_LOD_CLAMP_NONE,
                                                            .borderColor = VK_BORDER_COLOR_FLOAT_OPAQUE_WHITE});
    VkSampler material = sampler(host, &(VkSamplerCreateInfo){.sType = VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO,
                                                              .magFilter = VK_FILTER_LINEAR,
                                                              .minFilter = VK_FILTER_LINEAR,
                                                              .mipmapMode = VK_SAMPLER_MIPMAP_MODE_LINEAR,
                                                              .anisotropyEnable = VK_TRUE,
                                                              .maxAnisotropy = 8.0f,
                                                              .maxLod = VK_LOD_CLAMP_NONE});
    VkDescriptorSetLayout sets[] = {
        set_layout(host, BINDINGS({0, UNIFORM_BUFFER, 1, VERTEX | FRAGMENT, NULL}, {1, STORAGE_BUFFER, 1, FRAGMENT, NULL},
                                  {2, TEXTURE, 1, FRAGMENT, &shadow}, {3, TEXTURE, 1, FRAGMENT, NULL},
                                  {4, TEXTURE, 1, FRAGMENT, NULL})),
        set_layout(host, BINDINGS({0, STORAGE_BUFFER, 1, FRAGMENT, NULL}, {1, TEXTURE, 1, FRAGMENT, &material},
                                  {2, TEXTURE, 1, FRAGMENT, &material}, {3, TEXTURE, 1, FRAGMENT, &material})),
        set_layout(host, BINDINGS({0, STORAGE_BUFFER, 1, VERTEX, NULL})),
    };
    return pipeline_layout(host, sets, COUNT(sets), VERTEX, 68);
}

/* An attachment as the sample writes one by its format only: cleared and stored, of one sample. */
static VkAttachmentDescription2 attachment(VkFormat format, VkImageLayout layout) {
    return (VkAttachmentDescription2){.sType = VK_STRUCTURE_TYPE_ATTACHMENT_DESCRIPTION_2,
                                      .format = format,
                                      .samples = VK_SAMPLE_COUNT_1_BIT,
                                      .loadOp = VK_ATTACHMENT_LOAD_OP_CLEAR,
                                      .storeOp = VK_ATTACHMENT_STORE_OP_STORE,
                                      .stencilLoadOp = VK_ATTACHMENT_LOAD_OP_DONT_CARE,
                                      .stencilStoreOp = VK_ATTACHMENT_STORE_OP_DONT_CARE,
                                      .finalLayout = layout};
}

static VkAttachmentReference2 reference(uint32_t number, VkImageLayout layout, VkImageAspectFlags aspects) {
    return (VkAttachmentReference2){VK_STRUCTURE_TYPE_ATTACHMENT_REFERENCE_2, NULL, number, layout, aspects};
}

#define COLOR_LAYOUT VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL
#define DEPTH_LAYOUT VK_IMAGE_LAYOUT_DEPTH_STENCIL_ATTACHMENT_OPTIMAL
#define READ_LAYOUT VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL

static VkRenderPass forward_pass(struct host *host) {
    VkAttachmentDescription2 attachments[] = {attachment(VK_FORMAT_R16G16B16A16_SFLOAT, COLOR_LAYOUT),
                                              attachment(VK_FORMAT_D32_SFLOAT, DEPTH_LAYOUT)};
    VkAttachmentReference2 color = reference(0, COLOR_LAYOUT, 0), depth = reference(1, DEPTH_LAYOUT, 0);
    VkSubpassDescription2 subpass = {.sType = VK_STRUCTURE_TYPE_SUBPASS_DESCRIPTION_2,
                                     .colorAttachmentCount = 1,
                                     .pColorAttachments = &color,
                                     .pDepthStencilAttachment = &depth};
    return render_pass(host, &(VkRenderPassCreateInfo2){.sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO_2,
                                                        .attachmentCount = COUNT(attachments),
                                                        .pAttachments = attachments,
                                                        .subpassCount = 1,
                                                        .pSubpasses = &subpass});
}

/* The sample's first render pass of Vulkan 1.0: depth only. */
static VkRenderPass shadow_pass(struct host *host) {
    VkAttachmentDescription depth = {.format = VK_FORMAT_D32_SFLOAT,
                                     .samples = VK_SAMPLE_COUNT_1_BIT,
                                     .loadOp = VK_ATTACHMENT_LOAD_OP_CLEAR,
                                     .storeOp = VK_ATTACHMENT_STORE_OP_STORE,
                                     .stencilLoadOp = VK_ATTACHMENT_LOAD_OP_DONT_CARE,
                                     .stencilStoreOp = VK_ATTACHMENT_STORE_OP_DONT_CARE,
                                     .finalLayout = DEPTH_LAYOUT};
    VkAttachmentReference used = {0, DEPTH_LAYOUT};
    VkSubpassDescription subpass = {.pDepthStencilAttachment = &used};
    VkRenderPassCreateInfo info = {.sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO,
                                   .attachmentCount = 1,
                                   .pAttachments = &depth,
                                   .subpassCount = 1,
                                   .pSubpasses = &subpass};
    VkRenderPass made;
    check(vkCreateRenderPass(host->device, &info, NULL, &made), "vkCreateRenderPass");
    KEEP(host, RENDER_PASS, made);
    return made;
}

static VkRenderPass deferred_pass(struct host *host) {
    VkAttachmentDescription2 attachments[] = {
        attachment(VK_FORMAT_R8G8B8A8_UNORM, COLOR_LAYOUT), attachment(VK_FORMAT_R16G16_SFLOAT, COLOR_LAYOUT),
        attachment(VK_FORMAT_R8G8B8A8_UNORM, COLOR_LAYOUT), attachment(VK_FORMAT_D32_SFLOAT, DEPTH_LAYOUT),
        attachment(VK_FORMAT_R16G16B16A16_SFLOAT, COLOR_LAYOUT)};
    VkAttachmentReference2 written[] = {reference(0, COLOR_LAYOUT, 0), reference(1, COLOR_LAYOUT, 0),
                                        reference(2, COLOR_LAYOUT, 0)};
    VkAttachmentReference2 depth = reference(3, DEPTH_LAYOUT, 0);
    VkAttachmentReference2 read[] = {reference(0, READ_LAYOUT, VK_IMAGE_ASPECT_COLOR_BIT),
                                     reference(1, READ_LAYOUT, VK_IMAGE_ASPECT_COLOR_BIT),
                                     reference(2, READ_LAYOUT, VK_IMAGE_ASPECT_COLOR_BIT),
                                     reference(3, READ_LAYOUT, VK_IMAGE_ASPECT_DEPTH_BIT)};
    VkAttachmentReference2 light = reference(4, COLOR_LAYOUT, 0);
    VkSubpassDescription2 subpasses[] = {{.sType = VK_STRUCTURE_TYPE_SUBPASS_DESCRIPTION_2,
                                          .colorAttachmentCount = COUNT(written),
                                          .pColorAttachments = written,
                                          .pDepthStencilAttachment = &depth},
                                         {.sType = VK_STRUCTURE_TYPE_SUBPASS_DESCRIPTION_2,
                                          .inputAttachmentCount = COUNT(read),
                                          .pInputAttachments = read,
                                          .colorAttachmentCount = 1,
                                          .pColorAttachments = &light}};
    VkSubpassDependency2 dependency = {
        .sType = VK_STRUCTURE_TYPE_SUBPASS_DEPENDENCY_2,
        .srcSubpass = 0,
        .dstSubpass = 1,
        .srcStageMask = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT | VK_PIPELINE_STAGE_LATE_FRAGMENT_TESTS_BIT,
        .dstStageMask = VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT,
        .srcAccessMask = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT | VK_ACCESS_DEPTH_STENCIL_ATTACHMENT_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_INPUT_ATTACHMENT_READ_BIT,
        .dependencyFlags = VK_DEPENDENCY_BY_REGION_BIT};
    return render_pass(host, &(VkRenderPassCreateInfo2){.sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO_2,
                                                        .attachmentCount = COUNT(attachments),
                                                        .pAttachments = attachments,
                                                        .subpassCount = COUNT(subpasses),
                                                        .pSubpasses = subpasses,
                                                        .dependencyCount = 1,
                                                        .pDependencies = &dependency});
}

static VkResult graphics_lit(struct attempt *attempt) {
    struct graphics g;
    struct host *host = attempt->host;
    start_whole(&g, 2);
    g.stages[0] = stage(host, VERTEX, "scene.vert", CONSTANTS({10, VK_TRUE}));
    g.stages[1] = stage(host, FRAGMENT, "lit.frag", CONSTANTS({0, VK_TRUE}, {1, 9}));
    vertex_input(&g, 72, FULL, COUNT(FULL));
    g.rasterization.cullMode = VK_CULL_MODE_BACK_BIT;
    g.depth_stencil.depthCompareOp = VK_COMPARE_OP_GREATER;
    g.info.pDepthStencilState = &g.depth_stencil;
    blend_alpha(&g.blend);
    g.info.layout = lit_layout(host);
    g.info.renderPass = forward_pass(host);
    return create_graphics(attempt, g.info, NULL);
}

static VkResult graphics_shadow(struct attempt *attempt) {
    static const VkVertexInputAttributeDescription attributes[] = {{0, 0, VK_FORMAT_R32G32B32_SFLOAT, 0},
                                                                   {1, 0, VK_FORMAT_R32G32_SFLOAT, 12}};
    struct graphics g;
    struct host *host = attempt->host;
    start_whole(&g, 1);
    g.stages[0] = stage(host, VERTEX, "shadow.vert", NO_CONSTANTS);
    vertex_input(&g, 20, attributes, COUNT(attributes));
    g.rasterization.cullMode = VK_CULL_MODE_FRONT_BIT;
    g.rasterization.depthBiasEnable = VK_TRUE;
    g.rasterization.depthBiasConstantFactor = 1.25f;
    g.rasterization.depthBiasSlopeFactor = 1.75f;
    g.info.pDepthStencilState = &g.depth_stencil;
    g.info.pColorBlendState = NULL;
    g.info.layout = pipeline_layout(host, NULL, 0, VERTEX, 64);
    g.info.renderPass = shadow_pass(host);
    return create_graphics(attempt, g.info, NULL);
}

static VkResult graphics_deferred(struct attempt *attempt) {
    struct graphics g;
    struct host *host = attempt->host;
    start_whole(&g, 2);
    g.stages[0] = stage(host, VERTEX, "fullscreen.vert", NO_CONSTANTS);
    g.stages[1] = stage(host, FRAGMENT, "deferred.frag", CONSTANTS({0, 16}));
    VkDescriptorSetLayout set =
        set_layout(host, BINDINGS({0, INPUT_ATTACHMENT, 1, FRAGMENT, NULL}, {1, INPUT_ATTACHMENT, 1, FRAGMENT, NULL},
                                  {2, INPUT_ATTACHMENT, 1, FRAGMENT, NULL}, {3, INPUT_ATTACHMENT, 1, FRAGMENT, NULL},
                                  {4, UNIFORM_BUFFER, 1, FRAGMENT, NULL}, {5, UNIFORM_BUFFER, 1, FRAGMENT, NULL}));
    g.info.layout = pipeline_layout(host, &set, 1, 0, 0);
    g.info.renderPass = deferred_pass(host);
    g.info.subpass = 1;
    return create_graphics(attempt, g.info, NULL);
}

static VkResult graphics_sky(struct attempt *attempt) {
    struct graphics g;
    struct host *host = attempt->host;
    start_whole(&g, 2);
    g.stages[0] = stage(host, VERTEX, "fullscreen.vert", NO_CONSTANTS);
    g.stages[1] = stage(host, FRAGMENT, "sky.frag", CONSTANTS({0, 16}));
    g.depth_stencil.depthWriteEnable = VK_FALSE;
    g.depth_stencil.depthCompareOp = VK_COMPARE_OP_EQUAL;
    g.info.layout = pipeline_layout(host, NULL, 0, FRAGMENT, 96);
    draw_into(&g, VK_FORMAT_R16G16B16A16_SFLOAT, VK_FORMAT_D32_SFLOAT);
    return create_graphics(attempt, g.info, NULL);
}

static VkResult graphics_particles(struct attempt *attempt) {
    static const VkVertexInputAttributeDescription attributes[] = {{0, 0, VK_FORMAT_R32G32B32A32_SFLOAT, 0},
                                                                   {1, 0, VK_FORMAT_R32G32B32A32_SFLOAT, 16}};
    struct graphics g;
    struct host *host = attempt->host;
    start_whole(&g, 3);
    g.stages[0] = stage(host, VERTEX, "particle.vert", NO_CONSTANTS);
    g.stages[1] = stage(host, GEOMETRY, "particle.geom", NO_CONSTANTS);
    g.stages[2] = stage(host, FRAGMENT, "particle.frag", CONSTANTS({1, VK_TRUE}));
    vertex_input(&g, 32, attributes, COUNT(attributes));
    g.input_assembly.topology = VK_PRIMITIVE_TOPOLOGY_POINT_LIST;
    g.blend.blendEnable = VK_TRUE;
    g.blend.srcColorBlendFactor = g.blend.dstColorBlendFactor = VK_BLEND_FACTOR_ONE;
    g.blend.srcAlphaBlendFactor = g.blend.dstAlphaBlendFactor = VK_BLEND_FACTOR_ONE;
    VkDescriptorSetLayout set =
        set_layout(host, BINDINGS({0, TEXTURE, 1, FRAGMENT, NULL}, {1, TEXTURE, 1, FRAGMENT, NULL}));
    g.info.layout = pipeline_layout(host, &set, 1, GEOMETRY, 128);
    draw_into(&g, VK_FORMAT_R16G16B16A16_SFLOAT, VK_FORMAT_UNDEFINED);
    return create_graphics(attempt, g.info, NULL);
}

static VkResult graphics_terrain(struct attempt *attempt) {
    static const VkVertexInputAttributeDescription attributes[] = {{0, 0, VK_FORMAT_R32G32_SFLOAT, 0}};
    struct graphics g;
    struct host *host = attempt->host;
    start_whole(&g, 4);
    g.stages[0] = stage(host, VERTEX, "terrain.vert", NO_CONSTANTS);
    g.stages[1] = stage(host, CONTROL, "terrain.tesc", NO_CONSTANTS);
    g.stages[2] = stage(host, EVALUATION, "terrain.tese", CONSTANTS({1, 6}));
    g.stages[3] = stage(host, FRAGMENT, "terrain.frag", CONSTANTS({2, VK_TRUE}));
    vertex_input(&g, 8, attributes, COUNT(attributes));
    g.input_assembly.topology = VK_PRIMITIVE_TOPOLOGY_PATCH_LIST;
    g.tessellation.patchControlPoints = 4;
    g.info.pTessellationState = &g.tessellation;
    g.rasterization.cullMode = VK_CULL_MODE_BACK_BIT;
    VkDescriptorSetLayout set =
        set_layout(host, BINDINGS({0, TEXTURE, 1, EVALUATION, NULL}, {1, TEXTURE, 1, FRAGMENT, NULL}));
    g.info.layout = pipeline_layout(host, &set, 1, CONTROL | EVALUATION, 80);
    draw_into(&g, VK_FORMAT_R16G16B16A16_SFLOAT, VK_FORMAT_D32_SFLOAT);
    return create_graphics(attempt, g.info, NULL);
}

static VkResult graphics_meshlets(struct attempt *attempt) {
    struct graphics g;
    struct host *host = attempt->host;
    start_whole(&g, 3);
    g.stages[0] = stage(host, TASK, "meshlet.task", CONSTANTS({0, VK_TRUE}));
    g.stages[1] = stage(host, MESH, "meshlet.mesh", NO_CONSTANTS);
    g.stages[2] = stage(host, FRAGMENT, "color.frag", NO_CONSTANTS);
    g.info.pVertexInputState = NULL;
    g.info.pInputAssemblyState = NULL;
    VkDescriptorSetLayout set =
        set_layout(host, BINDINGS({0, STORAGE_BUFFER, 1, TASK, NULL}, {1, STORAGE_BUFFER, 1, MESH, NULL},
                                  {2, STORAGE_BUFFER, 1, MESH, NULL}, {3, STORAGE_BUFFER, 1, MESH, NULL},
                                  {4, STORAGE_BUFFER, 1, MESH, NULL}));
    g.info.layout = pipeline_layout(host, &set, 1, TASK | MESH, 116);
    draw_into(&g, VK_FORMAT_R8G8B8A8_UNORM, VK_FORMAT_D32_SFLOAT);
    return create_graphics(attempt, g.info, NULL);
}

static VkResult graphics_robust_ui(struct attempt *attempt) {
    static const VkVertexInputAttributeDescription attributes[] = {{0, 0, VK_FORMAT_R32G32_SFLOAT, 0},
                                                                   {1, 0, VK_FORMAT_R32G32_SFLOAT, 8},
                                                                   {2, 0, VK_FORMAT_R32G32B32A32_SFLOAT, 16}};
    struct graphics g;
    struct host *host = attempt->host;
    start_whole(&g, 2);
    g.stages[0] = stage(host, VERTEX, "ui.vert", NO_CONSTANTS);
    g.stages[1] = stage(host, FRAGMENT, "ui.frag", NO_CONSTANTS);
    vertex_input(&g, 32, attributes, COUNT(attributes));
    VkPipelineRobustnessCreateInfoEXT robustness = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO_EXT,
        .storageBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_EXT,
        .uniformBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_EXT,
        .vertexInputs = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_ROBUST_BUFFER_ACCESS_EXT,
        .images = VK_PIPELINE_ROBUSTNESS_IMAGE_BEHAVIOR_ROBUST_IMAGE_ACCESS_EXT};
    g.info.pNext = &robustness;
    VkDescriptorSetLayout set = set_layout(host, BINDINGS({0, TEXTURE, 1, FRAGMENT, NULL}));
    g.info.layout = pipeline_layout(host, &set, 1, VERTEX, 16);
    draw_into(&g, VK_FORMAT_B8G8R8A8_UNORM, VK_FORMAT_UNDEFINED);
    return create_graphics(attempt, g.info, NULL);
}

/* --- graphics pipeline libraries ------------------------------------------------------------------------------ */

static VkResult create_library(struct attempt *attempt, struct graphics *g, VkGraphicsPipelineLibraryFlagsEXT parts,
                               VkPipeline *created) {
    VkGraphicsPipelineLibraryCreateInfoEXT library = {
        .sType = VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_LIBRARY_CREATE_INFO_EXT, .pNext = (void *)g->info.pNext, .flags = parts};
    g->info.pNext = &library;
    g->info.flags = VK_PIPELINE_CREATE_LIBRARY_BIT_KHR;
    return create_graphics(attempt, g->info, created);
}

static VkResult library_input(struct attempt *attempt, VkPipeline *created) {
    struct graphics g;
    start(&g);
    vertex_input(&g, 72, FULL, COUNT(FULL));
    g.info.pVertexInputState = &g.vertex_input;
    g.info.pInputAssemblyState = &g.input_assembly;
    return create_library(attempt, &g, VK_GRAPHICS_PIPELINE_LIBRARY_VERTEX_INPUT_INTERFACE_BIT_EXT, created);
}

static VkResult library_vertex(struct attempt *attempt, VkPipeline *created) {
    struct graphics g;
    start(&g);
    g.info.stageCount = 1;
    g.stages[0] = stage(attempt->host, VERTEX, "scene.vert", NO_CONSTANTS);
    g.rasterization.cullMode = VK_CULL_MODE_BACK_BIT;
    g.info.pViewportState = &g.viewport;
    g.info.pRasterizationState = &g.rasterization;
    g.info.layout = lit_layout(attempt->host);
    g.info.pNext = &g.rendering; /* of which these two parts read the view mask only */
    return create_library(attempt, &g, VK_GRAPHICS_PIPELINE_LIBRARY_PRE_RASTERIZATION_SHADERS_BIT_EXT, created);
}

static VkResult library_fragment(struct attempt *attempt, VkPipeline *created) {
    struct graphics g;
    start(&g);
    g.info.stageCount = 1;
    g.stages[0] =
        stage(attempt->host, FRAGMENT, "lit.frag", CONSTANTS({0, VK_TRUE}, {2, VK_FALSE}, {3, VK_FALSE}));
    g.info.pMultisampleState = &g.multisample;
    g.info.pDepthStencilState = &g.depth_stencil;
    g.info.layout = lit_layout(attempt->host);
    g.info.pNext = &g.rendering;
    return create_library(attempt, &g, VK_GRAPHICS_PIPELINE_LIBRARY_FRAGMENT_SHADER_BIT_EXT, created);
}

static VkResult library_output(struct attempt *attempt, VkPipeline *created) {
    struct graphics g;
    start(&g);
    draw_into(&g, VK_FORMAT_R16G16B16A16_SFLOAT, VK_FORMAT_D32_SFLOAT);
    g.info.pDepthStencilState = NULL; /* the fragment shader's part has it */
    g.info.pMultisampleState = &g.multisample;
    g.info.pColorBlendState = &g.color_blend;
    return create_library(attempt, &g, VK_GRAPHICS_PIPELINE_LIBRARY_FRAGMENT_OUTPUT_INTERFACE_BIT_EXT, created);
}

static VkResult graphics_library_input(struct attempt *attempt) { return library_input(attempt, NULL); }
static VkResult graphics_library_vertex(struct attempt *attempt) { return library_vertex(attempt, NULL); }
static VkResult graphics_library_fragment(struct attempt *attempt) { return library_fragment(attempt, NULL); }
static VkResult graphics_library_output(struct attempt *attempt) { return library_output(attempt, NULL); }

static VkResult graphics_linked(struct attempt *attempt) {
    VkResult (*const parts[])(struct attempt *, VkPipeline *) = {library_input, library_vertex, library_fragment,
                                                                 library_output};
    VkPipeline libraries[COUNT(parts)];
    for (uint32_t i = 0; i < COUNT(parts); i++) {
        VkResult result = parts[i](attempt, &libraries[i]);
        if (result != VK_SUCCESS) return result;
    }
    VkPipelineLibraryCreateInfoKHR linked = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LIBRARY_CREATE_INFO_KHR,
                                             .libraryCount = COUNT(libraries),
                                             .pLibraries = libraries};
    VkGraphicsPipelineCreateInfo info = {.pNext = &linked, .layout = lit_layout(attempt->host)};
    return create_graphics(attempt, info, NULL);
}

/* --- ray tracing ---------------------------------------------------------------------------------------------- */

static VkPipelineLayout rays_layout(struct host *host) {
    VkDescriptorSetLayout set =
        set_layout(host, BINDINGS({0, ACCELERATION_STRUCTURE, 1, RAYGEN | CLOSEST_HIT, NULL},
                                  {1, STORAGE_IMAGE, 1, RAYGEN, NULL}, {2, STORAGE_BUFFER, 1, CLOSEST_HIT, NULL},
                                  {3, STORAGE_BUFFER, 1, CLOSEST_HIT, NULL}, {4, STORAGE_BUFFER, 1, CLOSEST_HIT, NULL},
                                  {5, TEXTURE, 1, ANY_HIT, NULL}, {6, STORAGE_BUFFER, 1, INTERSECTION, NULL}));
    return pipeline_layout(host, &set, 1, RAYGEN, 84);
}

#define NONE VK_SHADER_UNUSED_KHR

static VkRayTracingShaderGroupCreateInfoKHR group(VkRayTracingShaderGroupTypeKHR type, uint32_t general,
                                                  uint32_t closest_hit, uint32_t any_hit,
                                                  uint32_t intersection) {
    return (VkRayTracingShaderGroupCreateInfoKHR){.sType = VK_STRUCTURE_TYPE_RAY_TRACING_SHADER_GROUP_CREATE_INFO_KHR,
                                                  .type = type,
                                                  .generalShader = general,
                                                  .closestHitShader = closest_hit,
                                                  .anyHitShader = any_hit,
                                                  .intersectionShader = intersection};
}

static VkRayTracingShaderGroupCreateInfoKHR general(uint32_t shader) {
    return group(VK_RAY_TRACING_SHADER_GROUP_TYPE_GENERAL_KHR, shader, NONE, NONE, NONE);
}

static VkRayTracingShaderGroupCreateInfoKHR triangles(uint32_t closest_hit, uint32_t any_hit) {
    return group(VK_RAY_TRACING_SHADER_GROUP_TYPE_TRIANGLES_HIT_GROUP_KHR, NONE, closest_hit, any_hit, NONE);
}

static VkResult ray_tracing_path(struct attempt *attempt) {
    struct host *host = attempt->host;
    VkPipelineShaderStageCreateInfo stages[] = {
        stage(host, RAYGEN, "path.rgen", CONSTANTS({0, 2})), stage(host, MISS, "sky.rmiss", NO_CONSTANTS),
        stage(host, MISS, "shadow.rmiss", NO_CONSTANTS),
        stage(host, CLOSEST_HIT, "surface.rchit", CONSTANTS({2, VK_TRUE}))};
    VkRayTracingShaderGroupCreateInfoKHR groups[] = {general(0), general(1), general(2), triangles(3, NONE)};
    return create_ray_tracing(attempt,
                              (VkRayTracingPipelineCreateInfoKHR){.stageCount = COUNT(stages),
                                                                  .pStages = stages,
                                                                  .groupCount = COUNT(groups),
                                                                  .pGroups = groups,
                                                                  .maxPipelineRayRecursionDepth = 2,
                                                                  .layout = rays_layout(host)},
                              NULL);
}

static VkResult ray_tracing_foliage(struct attempt *attempt) {
    struct host *host = attempt->host;
    VkPipelineShaderStageCreateInfo stages[] = {
        stage(host, RAYGEN, "path.rgen", NO_CONSTANTS), stage(host, MISS, "sky.rmiss", NO_CONSTANTS),
        stage(host, MISS, "shadow.rmiss", NO_CONSTANTS), stage(host, CLOSEST_HIT, "surface.rchit", NO_CONSTANTS),
        stage(host, ANY_HIT, "foliage.rahit", NO_CONSTANTS)};
    VkRayTracingShaderGroupCreateInfoKHR groups[] = {general(0), general(1), general(2), triangles(3, 4)};
    return create_ray_tracing(attempt,
                              (VkRayTracingPipelineCreateInfoKHR){.stageCount = COUNT(stages),
                                                                  .pStages = stages,
                                                                  .groupCount = COUNT(groups),
                                                                  .pGroups = groups,
                                                                  .maxPipelineRayRecursionDepth = 2,
                                                                  .layout = rays_layout(host)},
                              NULL);
}

static VkResult ray_tracing_spheres(struct attempt *attempt) {
    struct host *host = attempt->host;
    VkPipelineShaderStageCreateInfo stages[] = {
        stage(host, RAYGEN, "path.rgen", CONSTANTS({1, VK_TRUE})), stage(host, MISS, "sky.rmiss", NO_CONSTANTS),
        stage(host, INTERSECTION, "sphere.rint", NO_CONSTANTS), stage(host, CLOSEST_HIT, "sphere.rchit", NO_CONSTANTS),
        stage(host, CALLABLE, "fog.rcall", NO_CONSTANTS)};
    VkRayTracingShaderGroupCreateInfoKHR groups[] = {
        general(0), general(1), group(VK_RAY_TRACING_SHADER_GROUP_TYPE_PROCEDURAL_HIT_GROUP_KHR, NONE, 3, NONE, 2),
        general(4)};
    return create_ray_tracing(attempt,
                              (VkRayTracingPipelineCreateInfoKHR){.stageCount = COUNT(stages),
                                                                  .pStages = stages,
                                                                  .groupCount = COUNT(groups),
                                                                  .pGroups = groups,
                                                                  .maxPipelineRayRecursionDepth = 1,
                                                                  .layout = rays_layout(host)},
                              NULL);
}

static const VkRayTracingPipelineInterfaceCreateInfoKHR RAYS_INTERFACE = {
    .sType = VK_STRUCTURE_TYPE_RAY_TRACING_PIPELINE_INTERFACE_CREATE_INFO_KHR,
    .maxPipelineRayPayloadSize = 48,
    .maxPipelineRayHitAttributeSize = 12};

static VkResult hit_library(struct attempt *attempt, VkPipeline *created) {
    struct host *host = attempt->host;
    VkPipelineShaderStageCreateInfo stages[] = {stage(host, CLOSEST_HIT, "surface.rchit", NO_CONSTANTS),
                                                stage(host, ANY_HIT, "foliage.rahit", NO_CONSTANTS)};
    VkRayTracingShaderGroupCreateInfoKHR groups[] = {triangles(0, NONE), triangles(0, 1)};
    return create_ray_tracing(attempt,
                              (VkRayTracingPipelineCreateInfoKHR){.flags = VK_PIPELINE_CREATE_LIBRARY_BIT_KHR,
                                                                  .stageCount = COUNT(stages),
                                                                  .pStages = stages,
                                                                  .groupCount = COUNT(groups),
                                                                  .pGroups = groups,
                                                                  .maxPipelineRayRecursionDepth = 2,
                                                                  .pLibraryInterface = &RAYS_INTERFACE,
                                                                  .layout = rays_layout(host)},
                              created);
}

static VkResult ray_tracing_hit_library(struct attempt *attempt) { return hit_library(attempt, NULL); }

static VkResult ray_tracing_linked(struct attempt *attempt) {
    struct host *host = attempt->host;
    VkPipeline library;
    VkResult result = hit_library(attempt, &library);
    if (result != VK_SUCCESS) return result;
    VkPipelineLibraryCreateInfoKHR libraries = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LIBRARY_CREATE_INFO_KHR,
                                                .libraryCount = 1,
                                                .pLibraries = &library};
    VkPipelineShaderStageCreateInfo stages[] = {stage(host, RAYGEN, "path.rgen", CONSTANTS({0, 2})),
                                                stage(host, MISS, "sky.rmiss", NO_CONSTANTS),
                                                stage(host, MISS, "shadow.rmiss", NO_CONSTANTS)};
    VkRayTracingShaderGroupCreateInfoKHR groups[] = {general(0), general(1), general(2)};
    return create_ray_tracing(attempt,
                              (VkRayTracingPipelineCreateInfoKHR){.stageCount = COUNT(stages),
                                                                  .pStages = stages,
                                                                  .groupCount = COUNT(groups),
                                                                  .pGroups = groups,
                                                                  .maxPipelineRayRecursionDepth = 2,
                                                                  .pLibraryInfo = &libraries,
                                                                  .pLibraryInterface = &RAYS_INTERFACE,
                                                                  .layout = rays_layout(host)},
                              NULL);
}

/* --- all of them ---------------------------------------------------------------------------------------------- */

struct pipeline {
    const char *name; /* in the sample's manifest */
    const char *kind;
    const char *needs; /* features */
    VkResult (*create)(struct attempt *);
};

#define ANISOTROPY "VkPhysicalDeviceFeatures::samplerAnisotropy "
#define DYNAMIC "VkPhysicalDeviceDynamicRenderingFeatures::dynamicRendering "
#define LIBRARY "VkPhysicalDeviceGraphicsPipelineLibraryFeaturesEXT::graphicsPipelineLibrary "
#define RAYS \
    "VkPhysicalDeviceRayTracingPipelineFeaturesKHR::rayTracingPipeline " \
    "VkPhysicalDeviceAccelerationStructureFeaturesKHR::accelerationStructure " \
    "VkPhysicalDeviceBufferDeviceAddressFeatures::bufferDeviceAddress "

static const struct pipeline PIPELINES[] = {
    {"compute.particles[0=64,SUBSTEPS=4,COLLISIONS=true]", "compute", "", compute_particles},
    {"compute.blur[GROUP=128,RADIUS=8,VERTICAL=true]", "compute", "", compute_blur},
    {"compute.tonemap[OPERATOR=3,SRGB=true,DITHER=true]", "compute", "", compute_tonemap},
    {"compute.prefix_sum_wave32", "compute", "VkPhysicalDeviceSubgroupSizeControlFeatures::subgroupSizeControl",
     compute_prefix_sum_wave32},
    {"graphics.lit[NORMAL_MAP=true,SHADOW_TAPS=9,SKINNED=true,cull_mode=back,blend=alpha]", "graphics", ANISOTROPY,
     graphics_lit},
    {"graphics.shadow[cull_mode=front,render_pass=shadow]", "graphics", "", graphics_shadow},
    {"graphics.deferred[LIGHTS=16]", "graphics", "", graphics_deferred},
    {"graphics.sky[STEPS=16,color_formats=r16g16b16a16_sfloat]", "graphics", DYNAMIC, graphics_sky},
    {"graphics.particles[SOFT=true,blend=additive]", "graphics", DYNAMIC "VkPhysicalDeviceFeatures::geometryShader",
     graphics_particles},
    {"graphics.terrain[OCTAVES=6,TRIPLANAR=true,polygon_mode=fill]", "graphics",
     DYNAMIC "VkPhysicalDeviceFeatures::tessellationShader", graphics_terrain},
    {"graphics.meshlets[CONE_CULLING=true,cull_mode=none]", "graphics",
     DYNAMIC "VkPhysicalDeviceMeshShaderFeaturesEXT::taskShader VkPhysicalDeviceMeshShaderFeaturesEXT::meshShader",
     graphics_meshlets},
    {"graphics.robust_ui", "graphics", DYNAMIC "VkPhysicalDevicePipelineRobustnessFeatures::pipelineRobustness",
     graphics_robust_ui},
    {"graphics.library_input[vertex_input=full]", "graphics", LIBRARY, graphics_library_input},
    {"graphics.library_vertex[cull_mode=back]", "graphics", DYNAMIC ANISOTROPY LIBRARY, graphics_library_vertex},
    {"graphics.library_fragment[NORMAL_MAP=true,ALPHA_TEST=false]", "graphics", DYNAMIC ANISOTROPY LIBRARY,
     graphics_library_fragment},
    {"graphics.library_output[blend=opaque]", "graphics", DYNAMIC LIBRARY, graphics_library_output},
    {"graphics.linked[library_input[vertex_input=full],library_vertex[cull_mode=back],"
     "library_fragment[NORMAL_MAP=true,ALPHA_TEST=false],library_output[blend=opaque]]",
     "graphics", DYNAMIC ANISOTROPY LIBRARY, graphics_linked},
    {"ray_tracing.path[BOUNCES=2,SHADOWS=true]", "ray_tracing", RAYS, ray_tracing_path},
    {"ray_tracing.foliage", "ray_tracing", RAYS, ray_tracing_foliage},
    {"ray_tracing.spheres", "ray_tracing", RAYS, ray_tracing_spheres},
    {"ray_tracing.hit_library", "ray_tracing", RAYS, ray_tracing_hit_library},
    {"ray_tracing.linked[BOUNCES=2]", "ray_tracing", RAYS, ray_tracing_linked},
};

/* Prints a list of words as a JSON array. */
static void print_words(const char *list) {
    size_t length;
    const char *comma = "";
    putchar('[');
    for (const char *at = list; (at = next_word(at, &length)); at += length, comma = ", ")
        printf("%s\"%.*s\"", comma, (int)length, at);
    putchar(']');
}

static void list_pipelines(void) {
    for (uint32_t i = 0; i < COUNT(PIPELINES); i++) {
        printf("{\"name\": \"%s\", \"kind\": \"%s\", \"needs\": ", PIPELINES[i].name, PIPELINES[i].kind);
        print_words(PIPELINES[i].needs);
        puts("}");
    }
}

static void list_features(void) {
    for (uint32_t i = 0; i <= COUNT(STRUCTURES); i++) {
        const struct feature_structure *each = i ? &STRUCTURES[i - 1] : &BASE_FEATURES;
        printf("{\"name\": \"%s\", \"s_type\": %u, \"core\": ", each->name, each->s_type);
        if (each->core) printf("\"%u.%u\"", VK_API_VERSION_MAJOR(each->core), VK_API_VERSION_MINOR(each->core));
        else printf("null");
        printf(", \"extensions\": ");
        print_words(each->extensions);
        printf(", \"members\": ");
        print_words(each->members);
        puts("}");
    }
}

static const char *result_name(VkResult result, char text[16]) {
    switch ((int)result) {
    case VK_SUCCESS: return "VK_SUCCESS";
    case VK_PIPELINE_COMPILE_REQUIRED: return "VK_PIPELINE_COMPILE_REQUIRED";
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED: return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_UNKNOWN: return "VK_ERROR_UNKNOWN";
    default: snprintf(text, 16, "%d", (int)result); return text;
    }
}

static VkPipelineCache new_cache(const struct host *host, struct bytes initial) {
    VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                      .initialDataSize = initial.size,
                                      .pInitialData = initial.data};
    VkPipelineCache cache;
    check(vkCreatePipelineCache(host->device, &info, NULL, &cache), "vkCreatePipelineCache");
    return cache;
}

static void save_cache(const struct host *host, VkPipelineCache cache) {
    struct bytes content = {NULL, 0};
    check(vkGetPipelineCacheData(host->device, cache, &content.size, NULL), "vkGetPipelineCacheData");
    content.data = allocate(content.size, 1);
    VkResult result = vkGetPipelineCacheData(host->device, cache, &content.size, content.data);
    if (result != VK_SUCCESS) die(REFUSED, "vkGetPipelineCacheData: VkResult %d", (int)result);
    write_file(host->options.save, content);
    free(content.data);
}

/* Creates one pipeline and prints its line; what it comes to for the exit code. */
static enum exit_code try_pipeline(struct host *host, const struct pipeline *pipeline, VkPipelineCache cache) {
    bool forbid = host->options.forbid;
    struct attempt attempt = {
        .host = host,
        .cache = cache,
        .flags = forbid ? VK_PIPELINE_CREATE_FAIL_ON_PIPELINE_COMPILE_REQUIRED_BIT : 0,
        .told = true,
        .hit = true};
    char text[16];
    VkResult result = pipeline->create(&attempt);
    bool feedback_hit = attempt.told && attempt.hit;
    bool hit = forbid ? result == VK_SUCCESS : result == VK_SUCCESS && feedback_hit;
    printf("{\"name\": \"%s\", \"kind\": \"%s\", \"result\": \"%s\", \"hit\": %s, \"feedback\": %s}\n", pipeline->name,
           pipeline->kind, result_name(result, text), hit ? "true" : "false",
           !attempt.told ? "null" : feedback_hit ? "true" : "false");
    fflush(stdout);
    if (result < 0) return REFUSED;
    return (host->options.load || forbid) && !hit ? MISSED : GOOD;
}

static void print_skipped(const struct pipeline *pipeline, int missing) {
    size_t length = 0;
    const char *at = next_word(pipeline->needs, &length);
    for (; missing > 0; missing--) at = next_word(at + length, &length);
    printf("{\"name\": \"%s\", \"kind\": \"%s\", \"result\": \"SKIPPED\", \"hit\": false, \"feedback\": null, "
           "\"missing\": \"%.*s\"}\n",
           pipeline->name, pipeline->kind, (int)length, at);
}

int main(int count, char **arguments) {
    static struct host host;
    read_options(&host.options, count, arguments);
    if (host.options.list) list_pipelines();
    if (host.options.list_features) list_features();
    if (host.options.list || host.options.list_features) return GOOD;

    struct bytes initial = {NULL, 0};
    if (host.options.load) initial = read_file(host.options.load);
    open_host(&host);
    bool no_cache = host.options.forbid && !host.options.load;
    VkPipelineCache shared = host.options.load || no_cache ? VK_NULL_HANDLE : new_cache(&host, initial);
    enum exit_code worst = GOOD;
    uint32_t tried = 0;
    for (uint32_t i = 0; i < COUNT(PIPELINES); i++) {
        int missing = first_missing(&host.options.features, PIPELINES[i].needs);
        if (missing >= 0) {
            print_skipped(&PIPELINES[i], missing);
            continue;
        }
        VkPipelineCache cache = shared || no_cache ? shared : new_cache(&host, initial);
        enum exit_code code = try_pipeline(&host, &PIPELINES[i], cache);
        if (!shared) vkDestroyPipelineCache(host.device, cache, NULL);
        if (code > worst) worst = code;
        tried++;
    }
    if (host.options.save) save_cache(&host, shared);
    if (shared) vkDestroyPipelineCache(host.device, shared, NULL);
    free(initial.data);
    close_host(&host);
    return (host.options.load || no_cache) && !tried && worst == GOOD ? MISSED : (int)worst;
}
