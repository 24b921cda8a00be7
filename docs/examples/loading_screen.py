"""A loading screen to look at: a window with its own VkDevice, a bar while pipelines come in, then the scene.

    python loading_screen.py                         a window (needs a display, and from PyPI vulkan and glfw)
    python loading_screen.py --headless --save DIR   no window: DIR/loading.png and DIR/scene.png

The host creates instance and device with the PyPI package `vulkan` and owns them. The session runs beside the
frame loop, on the adopted device; the loop only looks, once a frame. The bar needs no pipeline:
vkCmdClearAttachments draws it. The scene is 48 tiles, each with the pipeline that the session made for it.

With --step it stops half-way and at the end, says so, and goes on with the next line of stdin.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import vulkan as vk

from orchestrator import CompileOptions, adopt_device, session

WIDTH, HEIGHT = 640, 480
BAR = (80, 400, 480, 24)  # x, y, width, height
FORMAT = vk.VK_FORMAT_B8G8R8A8_UNORM
FRAME_S = 1 / 60
NO_LIMIT = (1 << 64) - 1  # ns; lavapipe compiles when it draws, and other programs may hold the processors
API_VERSION = 1 << 22 | 3 << 12
MANIFEST = Path(__file__).with_suffix(".toml")

BACKGROUND, EMPTY, FULL = (0.05, 0.06, 0.10, 1.0), (0.20, 0.22, 0.30, 1.0), (1.0, 0.6, 0.1, 1.0)


class Host:
    """What an engine has anyway: instance, device, queue, and an image that every frame is drawn into."""

    def __init__(self, instance_extensions: list[str], device_extensions: list[str]) -> None:
        self.extensions = [*instance_extensions, *device_extensions]
        application = vk.VkApplicationInfo(pApplicationName="loading screen", apiVersion=API_VERSION)
        self.instance = vk.vkCreateInstance(
            vk.VkInstanceCreateInfo(
                pApplicationInfo=application,
                ppEnabledExtensionNames=instance_extensions,
                ppEnabledLayerNames=[],
            ),
            None,
        )
        self.physical_device = vk.vkEnumeratePhysicalDevices(self.instance)[0]
        self.features = vk.VkPhysicalDeviceVulkan13Features(
            dynamicRendering=1, pipelineCreationCacheControl=1
        )
        queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=[1.0])
        self.device = vk.vkCreateDevice(
            self.physical_device,
            vk.VkDeviceCreateInfo(
                pNext=self.features,
                pQueueCreateInfos=[queue],
                ppEnabledExtensionNames=device_extensions,
                ppEnabledLayerNames=[],
            ),
            None,
        )
        self.queue = vk.vkGetDeviceQueue(self.device, 0, 0)
        self.pool = vk.vkCreateCommandPool(
            self.device,
            vk.VkCommandPoolCreateInfo(
                flags=vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, queueFamilyIndex=0
            ),
            None,
        )
        allocated = vk.VkCommandBufferAllocateInfo(
            commandPool=self.pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
        )
        self.commands = vk.vkAllocateCommandBuffers(self.device, allocated)[0]
        self.fence = vk.vkCreateFence(self.device, vk.VkFenceCreateInfo(), None)
        self._create_canvas()

    def _create_canvas(self) -> None:
        self.canvas = vk.vkCreateImage(
            self.device,
            vk.VkImageCreateInfo(
                imageType=vk.VK_IMAGE_TYPE_2D,
                format=FORMAT,
                extent=vk.VkExtent3D(WIDTH, HEIGHT, 1),
                mipLevels=1,
                arrayLayers=1,
                samples=vk.VK_SAMPLE_COUNT_1_BIT,
                tiling=vk.VK_IMAGE_TILING_OPTIMAL,
                usage=vk.VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT | vk.VK_IMAGE_USAGE_TRANSFER_SRC_BIT,
                sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE,
                initialLayout=vk.VK_IMAGE_LAYOUT_UNDEFINED,
            ),
            None,
        )
        self.memory = self._memory(vk.vkGetImageMemoryRequirements(self.device, self.canvas), 0)
        vk.vkBindImageMemory(self.device, self.canvas, self.memory, 0)
        self.view = vk.vkCreateImageView(
            self.device,
            vk.VkImageViewCreateInfo(
                image=self.canvas, viewType=vk.VK_IMAGE_VIEW_TYPE_2D, format=FORMAT, subresourceRange=_whole()
            ),
            None,
        )

    def _memory(self, needs: Any, flags: int) -> Any:
        kinds = vk.vkGetPhysicalDeviceMemoryProperties(self.physical_device)
        index = next(
            number
            for number in range(kinds.memoryTypeCount)
            if needs.memoryTypeBits & 1 << number and kinds.memoryTypes[number].propertyFlags & flags == flags
        )
        allocated = vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=index)
        return vk.vkAllocateMemory(self.device, allocated, None)

    def submit(self, wait: Any = None, signal: Any = None) -> None:
        """Submit the commands, and wait until they are done: one frame at a time."""
        stages = [vk.VK_PIPELINE_STAGE_TRANSFER_BIT] if wait else []
        info = vk.VkSubmitInfo(
            pWaitSemaphores=[wait] if wait else [],
            pWaitDstStageMask=stages,
            pCommandBuffers=[self.commands],
            pSignalSemaphores=[signal] if signal else [],
        )
        vk.vkQueueSubmit(self.queue, 1, [info], self.fence)
        vk.vkWaitForFences(self.device, 1, [self.fence], vk.VK_TRUE, NO_LIMIT)
        vk.vkResetFences(self.device, 1, [self.fence])

    def pixels(self) -> bytes:
        """What the canvas shows, as rows of B, G, R, A."""
        size = WIDTH * HEIGHT * 4
        buffer = vk.vkCreateBuffer(
            self.device,
            vk.VkBufferCreateInfo(
                size=size,
                usage=vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE,
            ),
            None,
        )
        visible = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        memory = self._memory(vk.vkGetBufferMemoryRequirements(self.device, buffer), visible)
        vk.vkBindBufferMemory(self.device, buffer, memory, 0)
        vk.vkBeginCommandBuffer(self.commands, vk.VkCommandBufferBeginInfo())
        region = vk.VkBufferImageCopy(
            bufferOffset=0, imageSubresource=_layers(), imageExtent=vk.VkExtent3D(WIDTH, HEIGHT, 1)
        )
        source = vk.VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL
        vk.vkCmdCopyImageToBuffer(self.commands, self.canvas, source, buffer, 1, [region])
        vk.vkEndCommandBuffer(self.commands)
        self.submit()
        content = bytes(vk.vkMapMemory(self.device, memory, 0, size, 0))
        vk.vkUnmapMemory(self.device, memory)
        vk.vkDestroyBuffer(self.device, buffer, None)
        vk.vkFreeMemory(self.device, memory, None)
        return content

    def close(self) -> None:
        """Destroy everything that is the host's, after the adopted device was closed."""
        vk.vkDestroyImageView(self.device, self.view, None)
        vk.vkDestroyImage(self.device, self.canvas, None)
        vk.vkFreeMemory(self.device, self.memory, None)
        vk.vkDestroyFence(self.device, self.fence, None)
        vk.vkDestroyCommandPool(self.device, self.pool, None)
        vk.vkDestroyDevice(self.device, None)
        vk.vkDestroyInstance(self.instance, None)


class Window:
    """A window that shows the host's canvas."""

    def __init__(self) -> None:
        import glfw

        self.glfw = glfw
        if not glfw.init():
            raise SystemExit("loading_screen: no display; try --headless")
        glfw.window_hint(glfw.CLIENT_API, glfw.NO_API)
        glfw.window_hint(glfw.RESIZABLE, glfw.FALSE)
        glfw.window_hint(glfw.DECORATED, glfw.FALSE)
        self.window = glfw.create_window(WIDTH, HEIGHT, "loading", None, None)
        glfw.set_window_pos(self.window, 0, 0)
        self.host = host = Host(glfw.get_required_instance_extensions(), ["VK_KHR_swapchain"])
        surface = vk.ffi.new("VkSurfaceKHR *")
        if glfw.create_window_surface(host.instance, self.window, None, surface):
            raise SystemExit("loading_screen: Vulkan cannot draw into this window; try --headless")
        self.surface = surface[0]
        call = vk.vkGetInstanceProcAddr
        if not call(host.instance, "vkGetPhysicalDeviceSurfaceSupportKHR")(
            host.physical_device, 0, self.surface
        ):
            raise SystemExit("loading_screen: the first queue family cannot present to this window")
        self.swapchain = call(host.instance, "vkCreateSwapchainKHR")(
            host.device,
            vk.VkSwapchainCreateInfoKHR(
                surface=self.surface,
                minImageCount=3,
                imageFormat=FORMAT,
                imageColorSpace=vk.VK_COLOR_SPACE_SRGB_NONLINEAR_KHR,
                imageExtent=vk.VkExtent2D(WIDTH, HEIGHT),
                imageArrayLayers=1,
                imageUsage=vk.VK_IMAGE_USAGE_TRANSFER_DST_BIT,
                imageSharingMode=vk.VK_SHARING_MODE_EXCLUSIVE,
                preTransform=vk.VK_SURFACE_TRANSFORM_IDENTITY_BIT_KHR,
                compositeAlpha=vk.VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR,
                presentMode=vk.VK_PRESENT_MODE_FIFO_KHR,
                clipped=vk.VK_TRUE,
            ),
            None,
        )
        self.images = call(host.instance, "vkGetSwapchainImagesKHR")(host.device, self.swapchain)
        self._acquire = call(host.instance, "vkAcquireNextImageKHR")
        self._present = call(host.instance, "vkQueuePresentKHR")
        self._ready, *self._drawn = (
            vk.vkCreateSemaphore(host.device, vk.VkSemaphoreCreateInfo(), None) for _ in (0, *self.images)
        )

    def show(self) -> bool:
        """Copy the canvas, whose commands the host has still open, to the window; False when it is closed."""
        host, image_layout = self.host, vk.VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL
        index = self._acquire(host.device, self.swapchain, NO_LIMIT, self._ready, None)
        image = self.images[index]
        _to_layout(host.commands, image, vk.VK_IMAGE_LAYOUT_UNDEFINED, image_layout)
        region = vk.VkImageCopy(
            srcSubresource=_layers(), dstSubresource=_layers(), extent=vk.VkExtent3D(WIDTH, HEIGHT, 1)
        )
        source = vk.VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL
        vk.vkCmdCopyImage(host.commands, host.canvas, source, image, image_layout, 1, [region])
        _to_layout(host.commands, image, image_layout, vk.VK_IMAGE_LAYOUT_PRESENT_SRC_KHR)
        vk.vkEndCommandBuffer(host.commands)
        host.submit(self._ready, self._drawn[index])
        self._present(
            host.queue,
            vk.VkPresentInfoKHR(
                pWaitSemaphores=[self._drawn[index]], pSwapchains=[self.swapchain], pImageIndices=[index]
            ),
        )
        self.glfw.poll_events()
        return not self.glfw.window_should_close(self.window)

    def close(self) -> None:
        """Destroy what is the window's, and the host."""
        host = self.host
        vk.vkDeviceWaitIdle(host.device)
        for each in (self._ready, *self._drawn):
            vk.vkDestroySemaphore(host.device, each, None)
        call = vk.vkGetInstanceProcAddr
        call(host.instance, "vkDestroySwapchainKHR")(host.device, self.swapchain, None)
        call(host.instance, "vkDestroySurfaceKHR")(host.instance, self.surface, None)
        host.close()
        self.glfw.terminate()


class Nowhere:
    """No window: the canvas is enough."""

    def __init__(self) -> None:
        self.host = Host([], [])

    def show(self) -> bool:
        """End and submit the commands."""
        vk.vkEndCommandBuffer(self.host.commands)
        self.host.submit()
        return True

    def close(self) -> None:
        """Destroy the host."""
        self.host.close()


def _whole() -> Any:
    return vk.VkImageSubresourceRange(vk.VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1)


def _layers() -> Any:
    return vk.VkImageSubresourceLayers(vk.VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1)


def _to_layout(commands: Any, image: Any, before: int, after: int) -> None:
    everything = vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT
    barrier = vk.VkImageMemoryBarrier(
        srcAccessMask=vk.VK_ACCESS_MEMORY_WRITE_BIT,
        dstAccessMask=vk.VK_ACCESS_MEMORY_READ_BIT | vk.VK_ACCESS_MEMORY_WRITE_BIT,
        oldLayout=before,
        newLayout=after,
        srcQueueFamilyIndex=vk.VK_QUEUE_FAMILY_IGNORED,
        dstQueueFamilyIndex=vk.VK_QUEUE_FAMILY_IGNORED,
        image=image,
        subresourceRange=_whole(),
    )
    vk.vkCmdPipelineBarrier(commands, everything, everything, 0, 0, None, 0, None, 1, [barrier])


def draw(host: Host, share: float, scene: list[Any]) -> None:
    """Record a frame: the scene where there is one, else a bar that is full by a share."""
    commands = host.commands
    attachment = vk.VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL
    area = vk.VkRect2D(vk.VkOffset2D(0, 0), vk.VkExtent2D(WIDTH, HEIGHT))
    color = vk.VkRenderingAttachmentInfo(
        imageView=host.view,
        imageLayout=attachment,
        loadOp=vk.VK_ATTACHMENT_LOAD_OP_CLEAR,
        storeOp=vk.VK_ATTACHMENT_STORE_OP_STORE,
        clearValue=_color(BACKGROUND),
    )
    vk.vkBeginCommandBuffer(commands, vk.VkCommandBufferBeginInfo())
    _to_layout(commands, host.canvas, vk.VK_IMAGE_LAYOUT_UNDEFINED, attachment)
    rendering = vk.VkRenderingInfo(renderArea=area, layerCount=1, viewMask=0, pColorAttachments=[color])
    vk.vkCmdBeginRendering(commands, rendering)
    if scene:
        viewport = vk.VkViewport(0.0, 0.0, float(WIDTH), float(HEIGHT), 0.0, 1.0)
        vk.vkCmdSetViewport(commands, 0, 1, [viewport])
        vk.vkCmdSetScissor(commands, 0, 1, [area])
        for pipeline in scene:
            vk.vkCmdBindPipeline(commands, vk.VK_PIPELINE_BIND_POINT_GRAPHICS, pipeline)
            vk.vkCmdDraw(commands, 4, 1, 0, 0)
    else:
        x, y, width, height = BAR
        fill(commands, EMPTY, x, y, width, height)
        fill(commands, FULL, x, y, round(width * share), height)
    vk.vkCmdEndRendering(commands)
    _to_layout(commands, host.canvas, attachment, vk.VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL)


def fill(commands: Any, color: tuple[float, ...], x: int, y: int, width: int, height: int) -> None:
    """Fill a rectangle; without a pipeline, so that it can be done before there is any."""
    if not width:
        return
    cleared = vk.VkClearAttachment(
        aspectMask=vk.VK_IMAGE_ASPECT_COLOR_BIT, colorAttachment=0, clearValue=_color(color)
    )
    area = vk.VkRect2D(vk.VkOffset2D(x, y), vk.VkExtent2D(width, height))
    vk.vkCmdClearAttachments(
        commands, 1, [cleared], 1, [vk.VkClearRect(rect=area, baseArrayLayer=0, layerCount=1)]
    )


def _color(color: tuple[float, ...]) -> Any:
    return vk.VkClearValue(color=vk.VkClearColorValue(float32=list(color)))


def write_png(path: Path, pixels: bytes) -> None:
    """Write rows of B, G, R, A as a PNG."""
    rows = bytearray()
    for y in range(HEIGHT):
        row = pixels[y * WIDTH * 4 : (y + 1) * WIDTH * 4]
        rgb = bytearray(WIDTH * 3)
        rgb[0::3], rgb[1::3], rgb[2::3] = row[2::4], row[1::4], row[0::4]
        rows += b"\0" + rgb

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(rows), 9))
        + chunk(b"IEND", b"")
    )


def _address(pointer: Any) -> int:
    return int(vk.ffi.cast("uintptr_t", pointer))


class Loading:
    """The loading screen: what each frame looks at, and what it found.

    Attributes:
        share: How much of the scene is there, 0..1.
        scene: The pipelines of the scene, once all are there.
    """

    def __init__(self, host: Host, *, stops: bool) -> None:
        self._device = adopt_device(
            instance=_address(host.instance),
            physical_device=_address(host.physical_device),
            device=_address(host.device),
            api_version=API_VERSION,
            enabled_extensions=host.extensions,
            enabled_features=_address(vk.ffi.addressof(host.features)),
        )
        self._session = session(MANIFEST, self._device, workers=1, options=CompileOptions(mode="none"))
        # With 0 nothing begins but what is required: so it stands still half-way.
        self._session.allow(0 if stops else None)
        self._first = [self._session.require(f"tile[TILE={tile}]") for tile in range(24)]
        self._tiles = self._session.submit("tile")
        self.share = 0.0
        self.scene: list[Any] = []

    def look(self) -> str:
        """Once a frame; "half-way" and "scene" where it has come so far just now."""
        if self._session.ended.done():
            self._session.ended.result()  # raises what it failed of
        self.share = self._session.progress.share
        if self._first and all(each.done() for each in self._first):
            self._first = []
            return "half-way"
        if self._tiles.done() and not self.scene:
            for reason in self._session.left_out.values():
                raise SystemExit(f"loading_screen: {reason}")
            pipelines = self._session.take("tile").values()
            self.scene = [vk.ffi.cast("VkPipeline", each) for each in pipelines]
            return "scene"
        return ""

    def go_on(self) -> None:
        """Let everything begin."""
        self._session.allow(None)

    def close(self) -> None:
        """End the session, and everything on the host's device that is not the host's."""
        self._session.close().result()
        self._device.destroy_pipelines(np.array([_address(each) for each in self.scene], np.uint64))
        self._device.close()


def main() -> None:
    """Show the bar until the scene is there, and the scene until the window is closed."""
    parser = argparse.ArgumentParser(description="A loading screen to look at.")
    parser.add_argument(
        "--headless", action="store_true", help="draw without a window, and end with the scene"
    )
    parser.add_argument("--save", type=Path, help="folder for loading.png and scene.png")
    parser.add_argument(
        "--step", action="store_true", help="stop half-way and at the end, until a line of stdin"
    )
    options = parser.parse_args()
    target = Nowhere() if options.headless else Window()
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
    loading = Loading(target.host, stops=options.step or options.save is not None)
    longest = 0.0
    showing = True
    while showing:
        began = time.perf_counter()
        event = loading.look()
        draw(target.host, loading.share, loading.scene)
        showing = target.show()
        if not loading.scene:  # the first frame of the scene is where lavapipe makes code for this processor
            longest = max(longest, time.perf_counter() - began)
        if event:
            if options.save is not None:
                name = {"half-way": "loading", "scene": "scene"}[event]
                write_png(options.save / f"{name}.png", target.host.pixels())
            print(
                f"{event}: {loading.share:.0%} of the pipelines, longest frame so far {longest * 1e3:.1f} ms",
                flush=True,
            )
            if options.step:
                sys.stdin.readline()
            if event == "scene" and (options.headless or options.step):
                break
            loading.go_on()
        time.sleep(max(0.0, FRAME_S - (time.perf_counter() - began)))
    loading.close()
    target.close()


if __name__ == "__main__":
    main()
