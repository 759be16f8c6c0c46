// hvd/cuda/copy.hpp: packs and unpacks many tensors on a GPU, scaled and converted on the way, in one launch.
//
// The kernels are embedded as PTX, for which no nvcc is needed: the driver compiles it for its GPU when it is loaded,
// and keeps the result on disk. A program may bring machine code instead, compiled by its own nvcc, with
//   nvcc -std=c++20 -Iinclude -fatbin -gencode arch=compute_90,code=[sm_90,compute_90] include/hvd/cuda/copy.cu -o
//   my.fatbin bin2c --const --name my_kernels my.fatbin > my_kernels.c
// and -DHVD_CUDA_FATBIN=my_kernels in all its files, one of which is my_kernels.c, compiled as C.
#pragma once

#include <hvd/cuda/copy.cuh>
#include <hvd/cuda/copy_ptx.hpp>
#include <hvd/cuda/driver.hpp>
#include <hvd/dtype.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#if defined(HVD_CUDA_FATBIN)
extern "C" const unsigned char HVD_CUDA_FATBIN[];
#endif

namespace hvd::inline HVD_ABI::detail {

/// Elements to copy, in the memory of a GPU or in any that it can reach. Each side starts at a multiple of its
/// element's size. They are the same memory, if both have one type, or do not overlap; nor do the outputs of several
/// parts.
struct device_part {
  const std::byte* in;
  std::byte* out;
  std::size_t count;  ///< elements; bytes if they are of dtype::user
};

/// The kernel for a copy, the number of its elements in one element of the tensors, and what they are.
struct copy_choice {
  std::size_t kernel;  ///< its place in copy_kernels
  std::size_t each;
  copy_type from, to;
};

/// The choice for elements of these types. Throws unsupported if no kernel converts or scales them.
inline copy_choice choose_copy(dtype from, dtype to, bool scales) {
  constexpr std::size_t bytes = 0, integers = 1, floats = 2;
  if (from == to && !scales) {
    constexpr copy_type byte = copy_type::of<std::byte>();
    return {bytes, std::max<std::size_t>(size_of(from), 1), byte, byte};
  }
  const auto is_complex = [](dtype type) { return type == dtype::complex64 || type == dtype::complex128; };
  const auto real_type = [](dtype type) -> copy_type {
    switch (type) {
      case dtype::int8: return copy_type::of<std::int8_t>();
      case dtype::uint8: return copy_type::of<std::uint8_t>();
      case dtype::int16: return copy_type::of<std::int16_t>();
      case dtype::uint16: return copy_type::of<std::uint16_t>();
      case dtype::int32: return copy_type::of<std::int32_t>();
      case dtype::uint32: return copy_type::of<std::uint32_t>();
      case dtype::int64: return copy_type::of<std::int64_t>();
      case dtype::uint64: return copy_type::of<std::uint64_t>();
      case dtype::float16: return copy_type::of<half>();
      case dtype::bfloat16: return copy_type::of<bfloat16>();
      case dtype::float32:
      case dtype::complex64: return copy_type::of<float>();
      case dtype::float64:
      case dtype::complex128: return copy_type::of<double>();
      default: return {};  // boolean and user: neither scaled nor converted
    }
  };
  const auto is_float = [](copy_type type) { return type.format >= copy_format::float16; };
  const auto is_single = [](copy_type type) { return type.format == copy_format::float32; };
  const copy_type in = real_type(from), out = real_type(to);
  if (is_complex(from) == is_complex(to) && from != dtype::boolean && from != dtype::user) {
    const std::size_t each = is_complex(from) ? 2 : 1;
    if (is_float(in) && is_float(out) && (from == to || is_single(in) || is_single(out)))
      return {floats, each, in, out};
    if (from == to) return {integers, each, in, out};
  }
  if (from == to) fail(error_kind::unsupported, {"elements of type ", name(from), " cannot be scaled on a GPU"});
  fail(error_kind::unsupported, {"elements of type ", name(from), " cannot be converted to ", name(to),
                                 " on a GPU; float32 can to float16 and bfloat16, float64 to float32, and back"});
}

/// Fills `p` and calls launch(tiles) for each launch that the parts need: one, if there are at most
/// copy_parameters::most. A part with more tiles than a grid can have is divided among launches.
template <class Launch>
void plan_copies(std::span<const device_part> parts, copy_choice choice, copy_parameters& p, const Launch& launch,
                 std::uint32_t most_tiles = std::uint32_t{std::numeric_limits<std::int32_t>::max()}) {
  const std::size_t from_bytes = std::size_t{1} << choice.from.shift, to_bytes = std::size_t{1} << choice.to.shift;
  const std::uint64_t tile_elements = copy_tile_elements(choice.from, choice.to);
  std::uint32_t tiles = 0;
  p.parts = 0;
  p.from = choice.from;
  p.to = choice.to;
  const auto finish = [&] {
    if (p.parts != 0) launch(tiles);
    p.parts = tiles = 0;
  };
  for (const device_part& part : parts) {
    const auto astray = [](const std::byte* at, std::size_t bytes) {
      return reinterpret_cast<std::uintptr_t>(at) % bytes != 0;
    };
    std::uint64_t left = std::uint64_t{part.count} * choice.each;
    if (left != 0 && (astray(part.in, from_bytes) || astray(part.out, to_bytes))) {
      fail(error_kind::invalid_argument,
           {"a tensor on a GPU does not start at a multiple of its elements' size, as its "
            "kernels need for scaling and conversion"});
    }
    const std::byte* in = part.in;
    std::byte* out = part.out;
    while (left != 0) {
      if (p.parts == copy_parameters::most || tiles == most_tiles) finish();
      const std::uint64_t room = (most_tiles - tiles) * tile_elements;
      const std::uint64_t count = std::min(left, room);
      p.part[p.parts] = {in, out, count};
      p.first_tile[p.parts] = tiles;
      ++p.parts;
      tiles += static_cast<std::uint32_t>((count + tile_elements - 1) / tile_elements);
      in += count * from_bytes;
      out += count * to_bytes;
      left -= count;
    }
  }
  finish();
}

/// Unloads a module in its context.
struct cuda_unload {
  const cuda_driver* driver = nullptr;
  cu_context context = nullptr;

  /// At the end of the process, the driver may already have shut down and freed everything.
  void operator()(cu_module module) const noexcept {
    if (driver->context_push(context) != cu_success) return;
    driver->module_unload(module);
    cu_context popped = nullptr;
    driver->context_pop(&popped);
  }
};

/// The kernels, loaded into the context that was current when they were loaded.
class cuda_kernels {
 public:
  /// Those of the current context. Loads them if they are not in use there: that takes a second, unless the driver has
  /// kept the result of an earlier time. Throws unsupported if the driver or the GPU is too old for them.
  static std::shared_ptr<const cuda_kernels> load(const cuda_driver& driver) {
    static std::mutex loading;
    static std::map<cu_context, std::weak_ptr<const cuda_kernels>> loaded;
    cu_context context = nullptr;
    driver.check(driver.context_current(&context), "cuCtxGetCurrent");
    const std::lock_guard lock(loading);
    std::weak_ptr<const cuda_kernels>& known = loaded[context];
    auto kernels = known.lock();
    if (!kernels) known = kernels = std::make_shared<const cuda_kernels>(driver, context);
    return kernels;
  }

  cuda_kernels(const cuda_driver& driver, cu_context context) {
    cu_module module = nullptr;
    const cu_result code = load_module(driver, module);
    if (code == cu_out_of_memory) driver.check(code, "cuModuleLoadData");
    if (code != cu_success) {
      fail(error_kind::unsupported, {"the CUDA driver does not load hvd's kernels: ", driver.text(code),
                                     "; they need CUDA 12.1 or later and a GPU of compute capability 8.0 or higher"});
    }
    module_ = {module, cuda_unload{&driver, context}};
    for (std::size_t i = 0; i != std::size(copy_kernels); ++i) {
      const std::string name(copy_kernels[i]);
      driver.check(driver.module_function(&functions_[i], module, name.c_str()), "cuModuleGetFunction");
    }
  }

  void launch(std::size_t which, std::uint32_t tiles, cu_stream stream, copy_parameters* parameters) const {
    const cuda_driver& driver = *module_.get_deleter().driver;
    void* argument = parameters;
    driver.check(driver.launch(functions_[which], tiles, 1, 1, copy_threads, 1, 1, 0, stream, &argument, nullptr),
                 "cuLaunchKernel");
  }

 private:
  static cu_result load_module(const cuda_driver& driver, cu_module& module) {
#if defined(HVD_CUDA_FATBIN)
    return driver.module_load(&module, HVD_CUDA_FATBIN);
#else
    std::string text;
    for (const std::string_view part : copy_ptx) text += part;
    return driver.module_load(&module, text.c_str());
#endif
  }

  std::unique_ptr<cu_module_type, cuda_unload> module_;
  std::array<cu_function, std::size(copy_kernels)> functions_{};
};

/// Copies by these kernels, in the context that was current when it was made. For one thread at a time.
class cuda_copies {
 public:
  explicit cuda_copies(const cuda_driver& driver)
      : kernels_(cuda_kernels::load(driver)), parameters_(std::make_unique<copy_parameters>()) {}

  /// Enqueues out[i] = in[i] * factor / divisor for all parts, with the bits of the host's reduction::finish (which are
  /// those of reduction::prepare where the divisor is 1); elements that are converted are scaled in the wider of the
  /// types. The context must be current. `poison`: see copy_parameters. Throws unsupported if there is no such
  /// conversion.
  void operator()(std::span<const device_part> parts, dtype from, dtype to, double factor, std::uint32_t divisor,
                  cu_stream stream, const std::uint32_t* poison = nullptr) {
    const copy_choice choice = choose_copy(from, to, factor != 1.0 || divisor != 1);
    parameters_->factor = factor;
    parameters_->divisor = divisor;
    parameters_->poison = poison;
    plan_copies(parts, choice, *parameters_,
                [&](std::uint32_t tiles) { kernels_->launch(choice.kernel, tiles, stream, parameters_.get()); });
  }

 private:
  std::shared_ptr<const cuda_kernels> kernels_;
  std::unique_ptr<copy_parameters> parameters_;
};

}  // namespace hvd::inline HVD_ABI::detail
