/* Reads a cache file of orchestrator: proves that it is whole and this device's, and gives the driver's bytes in it.
 *
 * One header, C99 or C++, no dependencies. The format is docs/cache-file.md. Nothing is allocated, and nothing outside
 * [content, content + size) is read, whatever the bytes are. Thread-safe: there is no state. The breaker at the end has a
 * file of its own.
 *
 *     const void *data;  size_t data_size;
 *     enum pipeline_cache_file_status status =
 *         pipeline_cache_file_read(content, content_size, &device, &data, &data_size);
 *     // VkPipelineCacheCreateInfo: .initialDataSize = data_size, .pInitialData = data
 *
 * Where the status is not PIPELINE_CACHE_FILE_GOOD, data is NULL and data_size 0: the cache starts empty, which is
 * valid. The data is inside the content, which must live until vkCreatePipelineCache has returned.
 *
 * The hashes find damage. They do not keep out an attacker: load only files that you or your team made.
 *
 * SPDX-License-Identifier: MIT
 * Copyright (c) 2026 the orchestrator authors. The licence's text is in LICENSE, at the top of the repository. */
#ifndef PIPELINE_CACHE_FILE_H
#define PIPELINE_CACHE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Why a file is not used; 0 is good. Where several hold, the first one of this order is said. */
enum pipeline_cache_file_status {
    PIPELINE_CACHE_FILE_GOOD = 0,
    PIPELINE_CACHE_FILE_EMPTY = 1,               /* no bytes, or none of the driver's */
    PIPELINE_CACHE_FILE_BAD_MAGIC = 2,           /* no cache file, or copied as text */
    PIPELINE_CACHE_FILE_UNSUPPORTED_VERSION = 3, /* of another format version: leave it alone */
    PIPELINE_CACHE_FILE_TRUNCATED = 4,           /* shorter than its header says */
    PIPELINE_CACHE_FILE_EXTENDED = 5,            /* longer than its header says */
    PIPELINE_CACHE_FILE_HEADER_DAMAGED = 6,      /* the header disagrees with its hash */
    PIPELINE_CACHE_FILE_OTHER_DEVICE = 7,        /* vendorID or deviceID */
    PIPELINE_CACHE_FILE_OTHER_ABI = 8,           /* another pointer size */
    PIPELINE_CACHE_FILE_OTHER_DRIVER = 9,        /* driverID, driverVersion or pipelineCacheUUID */
    PIPELINE_CACHE_FILE_DATA_DAMAGED = 10,       /* the driver's data disagrees with its hash */
    PIPELINE_CACHE_FILE_NO_VULKAN_HEADER = 11    /* the data does not start as the device's must */
};

/* The device that is to take the data: from VkPhysicalDeviceProperties, and driverID from
 * VkPhysicalDeviceDriverProperties. */
struct pipeline_cache_file_device {
    uint32_t vendor_id;
    uint32_t device_id;
    uint32_t driver_version;
    uint32_t driver_id;
    uint8_t pipeline_cache_uuid[16];
};

static inline const char *pipeline_cache_file_text(enum pipeline_cache_file_status status) {
    static const char *const texts[] = {
        "good",
        "the file holds no data",
        "not a cache file, or damaged by a copy as text",
        "a cache file of another format version",
        "cut off",
        "longer than its header says",
        "the header is damaged",
        "made on another device",
        "made by a process with another pointer size",
        "made by another driver, or another version of it",
        "the data is damaged",
        "the data does not start with this device's header",
    };
    return (unsigned)status < sizeof texts / sizeof texts[0] ? texts[status] : "unknown";
}

/* --- XXH3 of 128 bits, seed 0, for inputs of 17 bytes or more; written from the specification of the format -------- */

static inline uint32_t pipeline_cache_file_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t pipeline_cache_file_u64(const uint8_t *at) {
    return (uint64_t)pipeline_cache_file_u32(at) | (uint64_t)pipeline_cache_file_u32(at + 4) << 32;
}

#define PIPELINE_CACHE_FILE_PRIME32_1 UINT64_C(0x9E3779B1)
#define PIPELINE_CACHE_FILE_PRIME32_2 UINT64_C(0x85EBCA77)
#define PIPELINE_CACHE_FILE_PRIME32_3 UINT64_C(0xC2B2AE3D)
#define PIPELINE_CACHE_FILE_PRIME64_1 UINT64_C(0x9E3779B185EBCA87)
#define PIPELINE_CACHE_FILE_PRIME64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PIPELINE_CACHE_FILE_PRIME64_3 UINT64_C(0x165667B19E3779F9)
#define PIPELINE_CACHE_FILE_PRIME64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define PIPELINE_CACHE_FILE_PRIME64_5 UINT64_C(0x27D4EB2F165667C5)

/* The format's secret, 192 bytes. */
static inline const uint8_t *pipeline_cache_file_secret(void) {
    static const uint8_t secret[192] = {
        0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d,
        0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0,
        0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0,
        0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b,
        0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac,
        0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51,
        0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34,
        0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49,
        0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8,
        0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b,
        0x40, 0x7e};
    return secret;
}

static inline uint64_t pipeline_cache_file_avalanche(uint64_t x) {
    x ^= x >> 37;
    x *= UINT64_C(0x165667919E3779F9);
    return x ^ x >> 32;
}

/* Both halves of a product of 128 bits, xor. */
static inline uint64_t pipeline_cache_file_fold(uint64_t a, uint64_t b) {
    uint64_t low = (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF), high = (a >> 32) * (b >> 32);
    uint64_t one = (a >> 32) * (b & 0xFFFFFFFF), two = (a & 0xFFFFFFFF) * (b >> 32);
    uint64_t middle = (low >> 32) + (one & 0xFFFFFFFF) + two;
    return (middle << 32 | (low & 0xFFFFFFFF)) ^ ((one >> 32) + (middle >> 32) + high);
}

static inline uint64_t pipeline_cache_file_mix(const uint8_t *data, const uint8_t *secret) {
    return pipeline_cache_file_fold(pipeline_cache_file_u64(data) ^ pipeline_cache_file_u64(secret),
                                    pipeline_cache_file_u64(data + 8) ^ pipeline_cache_file_u64(secret + 8));
}

static inline void pipeline_cache_file_mix_two(uint64_t sums[2], const uint8_t *one, const uint8_t *two,
                                               const uint8_t *secret) {
    sums[0] += pipeline_cache_file_mix(one, secret);
    sums[0] ^= pipeline_cache_file_u64(two) + pipeline_cache_file_u64(two + 8);
    sums[1] += pipeline_cache_file_mix(two, secret + 16);
    sums[1] ^= pipeline_cache_file_u64(one) + pipeline_cache_file_u64(one + 8);
}

static inline void pipeline_cache_file_stripe(uint64_t lanes[8], const uint8_t *data, const uint8_t *secret) {
    for (int i = 0; i < 8; i++) {
        uint64_t word = pipeline_cache_file_u64(data + 8 * i), mixed = word ^ pipeline_cache_file_u64(secret + 8 * i);
        lanes[i ^ 1] += word;
        lanes[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32);
    }
}

static inline uint64_t pipeline_cache_file_merge(const uint64_t lanes[8], const uint8_t *secret, uint64_t start) {
    for (int i = 0; i < 8; i += 2)
        start += pipeline_cache_file_fold(lanes[i] ^ pipeline_cache_file_u64(secret + 8 * i),
                                          lanes[i + 1] ^ pipeline_cache_file_u64(secret + 8 * i + 8));
    return pipeline_cache_file_avalanche(start);
}

/* For more than 240 bytes: blocks of 16 stripes of 64 bytes, 8 lanes side by side. */
static inline void pipeline_cache_file_hash_long(const uint8_t *data, size_t size, uint64_t halves[2]) {
    const uint8_t *secret = pipeline_cache_file_secret();
    uint64_t lanes[8] = {PIPELINE_CACHE_FILE_PRIME32_3, PIPELINE_CACHE_FILE_PRIME64_1, PIPELINE_CACHE_FILE_PRIME64_2,
                         PIPELINE_CACHE_FILE_PRIME64_3, PIPELINE_CACHE_FILE_PRIME64_4, PIPELINE_CACHE_FILE_PRIME32_2,
                         PIPELINE_CACHE_FILE_PRIME64_5, PIPELINE_CACHE_FILE_PRIME32_1};
    size_t at = 0;
    for (; size - at > 1024; at += 1024) {
        for (int stripe = 0; stripe < 16; stripe++)
            pipeline_cache_file_stripe(lanes, data + at + 64 * stripe, secret + 8 * stripe);
        for (int i = 0; i < 8; i++) {
            lanes[i] ^= lanes[i] >> 47;
            lanes[i] ^= pipeline_cache_file_u64(secret + 128 + 8 * i);
            lanes[i] *= PIPELINE_CACHE_FILE_PRIME32_1;
        }
    }
    size_t stripes = (size - at - 1) / 64;
    for (size_t stripe = 0; stripe < stripes; stripe++)
        pipeline_cache_file_stripe(lanes, data + at + 64 * stripe, secret + 8 * stripe);
    pipeline_cache_file_stripe(lanes, data + size - 64, secret + 121);
    halves[0] = pipeline_cache_file_merge(lanes, secret + 11, (uint64_t)size * PIPELINE_CACHE_FILE_PRIME64_1);
    halves[1] = pipeline_cache_file_merge(lanes, secret + 117, ~((uint64_t)size * PIPELINE_CACHE_FILE_PRIME64_2));
}

/* For 17 to 240 bytes. */
static inline void pipeline_cache_file_hash_short(const uint8_t *data, size_t size, uint64_t halves[2]) {
    const uint8_t *secret = pipeline_cache_file_secret();
    uint64_t sums[2] = {(uint64_t)size * PIPELINE_CACHE_FILE_PRIME64_1, 0};
    if (size <= 128) {
        for (size_t pair = (size - 1) / 32 + 1; pair-- > 0;)
            pipeline_cache_file_mix_two(sums, data + 16 * pair, data + size - 16 * pair - 16, secret + 32 * pair);
    } else {
        for (size_t chunk = 0; chunk < 4; chunk++)
            pipeline_cache_file_mix_two(sums, data + 32 * chunk, data + 32 * chunk + 16, secret + 32 * chunk);
        sums[0] = pipeline_cache_file_avalanche(sums[0]);
        sums[1] = pipeline_cache_file_avalanche(sums[1]);
        for (size_t chunk = 4; chunk < size / 32; chunk++)
            pipeline_cache_file_mix_two(sums, data + 32 * chunk, data + 32 * chunk + 16, secret + 32 * chunk - 125);
        pipeline_cache_file_mix_two(sums, data + size - 16, data + size - 32, secret + 103);
    }
    halves[0] = pipeline_cache_file_avalanche(sums[0] + sums[1]);
    halves[1] = 0 - pipeline_cache_file_avalanche(sums[0] * PIPELINE_CACHE_FILE_PRIME64_1 +
                                                  sums[1] * PIPELINE_CACHE_FILE_PRIME64_4 +
                                                  (uint64_t)size * PIPELINE_CACHE_FILE_PRIME64_2);
}

/* XXH3 of 128 bits in canonical order, the high half first, big-endian; size >= 17. */
static inline void pipeline_cache_file_hash(const void *data, size_t size, uint8_t hash[16]) {
    uint64_t halves[2];
    if (size > 240) pipeline_cache_file_hash_long((const uint8_t *)data, size, halves);
    else pipeline_cache_file_hash_short((const uint8_t *)data, size, halves);
    for (int i = 0; i < 8; i++) {
        hash[i] = (uint8_t)(halves[1] >> (56 - 8 * i));
        hash[8 + i] = (uint8_t)(halves[0] >> (56 - 8 * i));
    }
}

/* --- the file ------------------------------------------------------------------------------------------------------ */

/* Proves a file's content, and gives the driver's data in it.
 *
 *   content, size       the whole file
 *   device              the device that is to take it; NULL proves the file only
 *   data, data_size     out: the driver's bytes, inside content; NULL and 0 unless the answer is GOOD */
static inline enum pipeline_cache_file_status pipeline_cache_file_read(const void *content, size_t size,
                                                                       const struct pipeline_cache_file_device *device,
                                                                       const void **data, size_t *data_size) {
    static const uint8_t magic[8] = {0x89, 0x4f, 0x50, 0x43, 0x46, 0x0d, 0x0a, 0x1a};
    static const uint8_t zeros[32] = {0};
    enum { HEADER = 128, HASHED = 112, VULKAN_HEADER = 32 };
    const uint8_t *file = (const uint8_t *)content;
    uint8_t hash[16];
    *data = NULL;
    *data_size = 0;
    if (size == 0) return PIPELINE_CACHE_FILE_EMPTY;
    if (memcmp(file, magic, size < 8 ? size : 8) != 0) return PIPELINE_CACHE_FILE_BAD_MAGIC;
    if (size < 12) return PIPELINE_CACHE_FILE_TRUNCATED;
    if (pipeline_cache_file_u32(file + 8) != 1) return PIPELINE_CACHE_FILE_UNSUPPORTED_VERSION;
    if (size < HEADER) return PIPELINE_CACHE_FILE_TRUNCATED;
    pipeline_cache_file_hash(file, HASHED, hash);
    if (memcmp(hash, file + HASHED, 16) != 0 || pipeline_cache_file_u32(file + 12) != HEADER ||
        memcmp(file + 60, zeros, 4) != 0 || memcmp(file + 80, zeros, 32) != 0)
        return PIPELINE_CACHE_FILE_HEADER_DAMAGED;
    uint64_t given = pipeline_cache_file_u64(file + 16);
    if (size - HEADER < given) return PIPELINE_CACHE_FILE_TRUNCATED;
    if (size - HEADER > given) return PIPELINE_CACHE_FILE_EXTENDED;
    if (given == 0) return PIPELINE_CACHE_FILE_EMPTY;
    if (device) {
        if (pipeline_cache_file_u32(file + 40) != device->vendor_id ||
            pipeline_cache_file_u32(file + 44) != device->device_id)
            return PIPELINE_CACHE_FILE_OTHER_DEVICE;
        if (pipeline_cache_file_u32(file + 52) != 8 * sizeof(void *)) return PIPELINE_CACHE_FILE_OTHER_ABI;
        if (pipeline_cache_file_u32(file + 56) != device->driver_id ||
            pipeline_cache_file_u32(file + 48) != device->driver_version ||
            memcmp(file + 64, device->pipeline_cache_uuid, 16) != 0)
            return PIPELINE_CACHE_FILE_OTHER_DRIVER;
    }
    const uint8_t *payload = file + HEADER;
    if (given < VULKAN_HEADER) return PIPELINE_CACHE_FILE_NO_VULKAN_HEADER;
    pipeline_cache_file_hash(payload, (size_t)given, hash);
    if (memcmp(hash, file + 24, 16) != 0) return PIPELINE_CACHE_FILE_DATA_DAMAGED;
    /* VkPipelineCacheHeaderVersionOne: headerSize, headerVersion, vendorID, deviceID, pipelineCacheUUID. */
    uint32_t header_size = pipeline_cache_file_u32(payload);
    if (header_size < VULKAN_HEADER || header_size > given || pipeline_cache_file_u32(payload + 4) != 1 ||
        memcmp(payload + 8, file + 40, 8) != 0 || memcmp(payload + 16, file + 64, 16) != 0)
        return PIPELINE_CACHE_FILE_NO_VULKAN_HEADER;
    *data = payload;
    *data_size = (size_t)given;
    return PIPELINE_CACHE_FILE_GOOD;
}

/* --- a breaker for an engine that a driver ends while it loads -----------------------------------------------------
 *
 * A whole file may still end a driver, at every start. `marker` is the path of a file beside it that counts starts which
 * did not come back: one process at a time.
 *
 *     size = pipeline_cache_file_may_load(marker, 2) ? size_of_the_file : 0;   // 0 bytes: the cache starts empty
 *     ...                                    // create the cache, and show a frame with what it holds
 *     pipeline_cache_file_has_loaded(marker);
 *
 * After `most` such starts the next one begins with an empty cache. When it has loaded, it removes the marker, and what
 * it saves replaces the file. Where the marker cannot be written, every start may load. */
static inline int pipeline_cache_file_may_load(const char *marker, int most) {
    FILE *file = fopen(marker, "rb");
    int begun = 0;
    if (file) {
        begun = fgetc(file);
        if (begun == EOF) begun = 1; /* it was cut off while it was written */
        fclose(file);
    }
    if (begun >= most) return 0;
    file = fopen(marker, "wb");
    if (file) {
        fputc(begun + 1, file);
        fclose(file);
    }
    return 1;
}

static inline void pipeline_cache_file_has_loaded(const char *marker) {
    remove(marker);
}

#endif
