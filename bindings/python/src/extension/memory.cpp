#include "memory.hpp"

#include "gil.hpp"
#include "streams.hpp"

#include <hvd/cuda/results.hpp>
#include <hvd/dtype.hpp>
#include <hvd/engine/execute.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include <sys/types.h>
#include <unistd.h>

namespace hvd_python {
namespace nb = nanobind;
namespace {

/// A byte array with __dlpack__ and __dlpack_device__. The framework's stream must already wait for the results
/// (Handle.make_stream_wait); this function does not make it wait.
nb::object to_array(const memory& m) {
  struct owner {
    std::shared_ptr<std::byte> data;
    // Device memory may be freed only when the device is done with it, and the driver waits for that.
    ~owner() {
      const released_gil released;
      data.reset();
    }
  };
  auto* const held = new owner{m.data};
  const nb::capsule keep(held, [](void* p) noexcept { delete static_cast<owner*>(p); });
  const int type = m.device < 0 ? nb::device::cpu::value : nb::device::cuda::value;
  return nb::cast(nb::ndarray<nb::array_api, std::uint8_t>(m.data.get(), {m.bytes}, keep, {}, nb::dtype<std::uint8_t>(),
                                                           type, std::max(m.device, 0)));
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const memory& m = *nb::inst_ptr<memory>(self);
  if (m.device >= 0) {
    view->obj = nullptr;
    PyErr_Format(PyExc_BufferError, "hvd: this result is in the memory of GPU %d, which the host cannot read",
                 m.device);
    return -1;
  }
  static char nothing;
  void* const data = m.data ? static_cast<void*>(m.data.get()) : &nothing;
  return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(m.bytes), 0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};

/// Memory for large results, returned when the last tensor over it is gone. New memory costs more than a reduction in
/// it, because the kernel clears pages when they are first touched. Used and kept memory together never exceed the most
/// ever used at once.
class kept_blocks {
 public:
  static constexpr std::size_t least = 64 << 10;  // the allocator itself keeps smaller ones

  /// Never destroyed: tensors may live until the process ends.
  static kept_blocks& instance() {
    static auto* const all = new kept_blocks;
    return *all;
  }

  std::shared_ptr<std::byte> take(std::size_t bytes) {
    // A forked child keeps no memory: a thread missing in the child may hold the lock.
    if (bytes < least || ::getpid() != owner_) return hvd::detail::result_memory(bytes);
    const std::size_t size = hvd::detail::round_up(bytes, page);
    std::byte* block = find(size);
    if (block == nullptr) block = static_cast<std::byte*>(::operator new(size, std::align_val_t(page)));
    {
      const std::lock_guard lock(mutex_);
      used_ += size;
      most_used_ = std::max(most_used_, used_);
    }
    return {block, [this, size](std::byte* p) { give_back(p, size); }};
  }

 private:
  static constexpr std::size_t page = 4096;

  std::byte* find(std::size_t size) {
    const std::lock_guard lock(mutex_);
    const auto found = free_.find(size);
    if (found == free_.end()) return nullptr;
    std::byte* const block = found->second;
    forget(found);
    return block;
  }
  void give_back(std::byte* block, std::size_t size) {
    if (::getpid() != owner_) return release(block);
    const std::lock_guard lock(mutex_);
    used_ -= size;
    try {
      free_.emplace(size, block);
    } catch (const std::bad_alloc&) {
      return release(block);
    }
    kept_ += size;
    while (used_ + kept_ > most_used_) {  // sizes no longer requested
      const auto other = free_.begin()->first == size ? std::prev(free_.end()) : free_.begin();
      release(other->second);
      forget(other);
    }
  }
  void forget(std::multimap<std::size_t, std::byte*>::iterator one) {
    kept_ -= one->first;
    free_.erase(one);
  }
  static void release(std::byte* block) { ::operator delete(block, std::align_val_t(page)); }

  const pid_t owner_ = ::getpid();
  std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> free_;  // by size
  std::size_t kept_ = 0, used_ = 0, most_used_ = 0;
};

// The structs of DLPack 0.8 (dmlc.github.io/dlpack), for a capsule "dltensor", the only kind that TensorFlow accepts.
struct dl_type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct dl_tensor {
  void* data;
  std::int32_t device_type, device_id, dimensions;
  dl_type type;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};
struct dl_managed {
  dl_tensor tensor;
  void* owner;
  void (*deleter)(dl_managed*);
};

dl_type dl_type_of(hvd::dtype type) {
  enum : std::uint8_t { signed_int, unsigned_int, floating, bfloat = 4, complex_number, truth };
  const auto bits = static_cast<std::uint8_t>(8 * hvd::size_of(type));
  using enum hvd::dtype;
  switch (type) {
    case int8:
    case int16:
    case int32:
    case int64: return {signed_int, bits, 1};
    case uint8:
    case uint16:
    case uint32:
    case uint64: return {unsigned_int, bits, 1};
    case bfloat16: return {bfloat, bits, 1};
    case boolean: return {truth, bits, 1};
    case complex64:
    case complex128: return {complex_number, bits, 1};
    default: return {floating, bits, 1};
  }
}

/// A capsule of the memory with this dtype and shape. Any thread may drop the resulting tensor, without the GIL.
nb::object to_capsule(const memory& m, std::uint8_t number, nb::handle lengths) {
  struct owner {
    dl_managed managed;
    std::shared_ptr<std::byte> data;
    std::vector<std::int64_t> shape;
  };
  const auto type = static_cast<hvd::dtype>(number);
  const std::vector<std::size_t> shape = read_lengths(lengths);
  std::size_t bytes = hvd::size_of(type);
  for (const std::size_t n : shape) bytes *= n;
  if (m.device >= 0 || bytes != m.bytes) throw nb::value_error("hvd: the type and shape do not fit the memory");
  auto* const held = new owner{{}, m.data, {shape.begin(), shape.end()}};
  held->managed = {{m.data.get(), nb::device::cpu::value, 0, static_cast<std::int32_t>(shape.size()), dl_type_of(type),
                    held->shape.data(), nullptr, 0},
                   held,
                   [](dl_managed* one) { delete static_cast<owner*>(one->owner); }};
  // The consumer of the tensor renames the capsule, and calls the deleter.
  PyObject* const capsule = PyCapsule_New(&held->managed, "dltensor", [](PyObject* self) {
    if (!PyCapsule_IsValid(self, "dltensor")) return;
    auto* const unused = static_cast<dl_managed*>(PyCapsule_GetPointer(self, "dltensor"));
    unused->deleter(unused);
  });
  if (capsule == nullptr) {
    delete held;
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

}  // namespace

std::vector<std::size_t> read_lengths(nb::handle lengths) {
  std::vector<std::size_t> result;
  for (const nb::handle length : lengths) {
    const auto value = nb::cast<long long>(length);
    if (value < 0) throw nb::value_error("hvd: a length or a number of rows is negative");
    result.push_back(static_cast<std::size_t>(value));
  }
  return result;
}

void define_memory(nb::module_& m) {
  nb::class_<memory>(m, "Memory", nb::type_slots(memory_slots))
      .def("__len__", [](const memory& x) { return x.bytes; })
      .def_prop_ro("address", [](const memory& x) { return reinterpret_cast<std::uintptr_t>(x.data.get()); })
      .def("array", &to_array)
      .def("let_go",
           [](memory& x, std::uintptr_t stream) {
             hvd::detail::cuda_results::reuse_after(x.data,
                                                    framework_devices::instance().record(stream_at(x.device, stream)));
             x.data.reset();
           })
      .def("dlpack", &to_capsule);
  m.def("allocate", [](std::size_t bytes) { return memory{kept_blocks::instance().take(bytes), bytes}; });
}

}  // namespace hvd_python
