// xla_ffi.hpp: the parts of XLA's foreign function interface that hvd needs.
#pragma once

#include <hvd/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

// From openxla/xla, xla/ffi/api/c_api.h. Versions 0.1 to 0.3 agree in all of this; later ones may append fields. The
// first field of each struct is its size.
namespace hvd_python::xla_ffi {

/// Extension of a struct. Type 1 asks a handler to describe itself.
struct extension {
  std::size_t size;
  int type;
  extension* next;
};

struct version {
  std::size_t size;
  extension* first;
  int major, minor;
};

struct failure;  // XLA's own

struct create_failure {
  std::size_t size;
  extension* first;
  const char* message;
  int code;
};
struct read_failure {
  std::size_t size;
  extension* first;
  failure* which;
  const char* message;
};
struct destroy_failure {
  std::size_t size;
  extension* first;
  failure* which;
};

struct bytes {
  const char* data;
  std::size_t size;
};

struct buffer {
  std::size_t size;
  extension* first;
  int type;
  void* data;
  std::int64_t rank;
  std::int64_t* lengths;
};

/// An attribute of type 1. An attribute of type 4, a string, is `bytes`.
struct array {
  int type;
  std::size_t count;
  void* data;
};
enum attribute_type { of_array = 1, of_string = 4 };

/// Arguments or results; type 1 is a buffer.
struct values {
  std::size_t size;
  extension* first;
  std::int64_t count;
  int* types;
  void** each;
};

struct attributes {
  std::size_t size;
  extension* first;
  std::int64_t count;
  int* types;
  bytes** names;
  void** each;
};

struct api;

/// One call of a handler. Stage 3 is the execution, the only stage for which hvd registers a handler.
struct frame {
  std::size_t size;
  extension* first;
  const xla_ffi::api* api;
  void* context;
  int stage;
  values arguments, results;
  xla_ffi::attributes attributes;
};

using handler = failure*(frame*);

struct description {
  std::size_t size;
  xla_ffi::version version;
  std::uint32_t traits;
};
struct describe_extension {
  extension base;
  xla_ffi::description* description;
};

struct registration {
  std::size_t size;
  extension* first;
  bytes name, platform;
  handler *instantiate, *prepare, *initialize, *execute;
  std::uint32_t traits;
};

struct api {
  std::size_t size;
  extension* first;
  xla_ffi::version version;
  const void* internal;
  failure* (*create)(create_failure*);
  void (*read)(read_failure*);
  void (*destroy)(destroy_failure*);
  failure* (*register_handler)(registration*);
};

constexpr int newest_minor = 3;  // of version 0
constexpr int token = 17;        // the type of a buffer that only orders calls

/// hvd's dtype for a type number of XLA; empty if hvd has none.
constexpr std::optional<hvd::dtype> dtype_of(int number) noexcept {
  using enum hvd::dtype;
  switch (number) {
    case 1: return boolean;
    case 2: return int8;
    case 3: return int16;
    case 4: return int32;
    case 5: return int64;
    case 6: return uint8;
    case 7: return uint16;
    case 8: return uint32;
    case 9: return uint64;
    case 10: return float16;
    case 11: return float32;
    case 12: return float64;
    case 15: return complex64;
    case 16: return bfloat16;
    case 18: return complex128;
    default: return std::nullopt;
  }
}

}  // namespace hvd_python::xla_ffi
