// c/requests.hpp: the requests of C programs to the engine, and their handles.
#pragma once

#include "collectives.hpp"
#include "communicator.hpp"
#include "objects.hpp"

#include <hvd/c/hvd.h>
#include <hvd/engine/request.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::c {

struct engine_object final : object {
  std::shared_ptr<engine> runs;
  std::mutex mutex;
  std::vector<std::shared_ptr<std::byte>> buckets;  // guarded by the mutex

  explicit engine_object(std::shared_ptr<engine> e) : runs(std::move(e)) {}
};
struct handle_object final : object {
  hvd::handle end;
  bool has_output;  // made by the engine, and not memory of the caller

  handle_object(hvd::handle h, bool output) : end(std::move(h)), has_output(output) {}
};

/// A copy, so that freeing the number while a call is under way ends the engine and not the program.
inline std::shared_ptr<engine> engine_of(hvd_engine number, std::string_view function) {
  const table::pinned held(number, kind::engine, function);
  return static_cast<engine_object&>(held.what()).runs;
}
inline std::pair<hvd::handle, bool> handle_of(hvd_handle number, std::string_view function) {
  const table::pinned held(number, kind::handle, function);
  const auto& h = static_cast<handle_object&>(held.what());
  return {h.end, h.has_output};
}

/// Starts an operation and makes a number for its end: the number first, because an operation that is under way has its
/// caller's memory.
template <class F>
hvd_handle number_of(const F& start, bool has_output) {
  auto made = std::make_unique<handle_object>(hvd::handle(), has_output);
  handle_object& object = *made;
  const hvd_handle number = table::all().add(kind::handle, std::move(made));
  try {
    object.end = start();
  } catch (...) {
    table::all().remove(number, kind::handle, "release");
    throw;
  }
  return number;
}

/// One operation on its way from the arguments of a C function to the engine.
class submission {
 public:
  submission(hvd_engine number, std::string_view function, operation what, const char* name, const hvd_submit* how,
             hvd_handle* handle)
      : function_(function), engine_(engine_of(number, function)), handle_(handle) {
    require(function, handle, "handle", "an hvd_handle");
    *handle = 0;
    require(function, name, "name", "a text, the same on all ranks");
    request_.kind = what;
    request_.name = name;
    if (how == nullptr) return;
    process_set_ = how->process_set;
    request_.priority = how->priority;
    if (how->wire == 0) return;
    if (!is_dtype(how->wire))
      refuse_it({"wire ", how->wire, " is not an element type; allowed: 0, HVD_FLOAT16, HVD_BFLOAT16 and HVD_FLOAT32"});
    request_.wire = static_cast<dtype>(how->wire);
  }

  submission& reduced_by(int op) {
    if (!is_op(op)) refuse_it({"op ", op, " is not a reduction", allowed_ops});
    request_.op = static_cast<reduce_op>(op);
    return *this;
  }
  submission& from(int root) {
    request_.root = root;
    return *this;
  }
  /// A tensor whose result goes to memory of the caller.
  submission& tensor(const void* in, void* out, std::size_t count, int type) {
    if (out == nullptr && count != 0) refuse_it({"the output is null but has ", count, " elements"});
    return add(in, out, count, type);
  }
  submission& list(const hvd_tensor* tensors, std::size_t n) {
    if (tensors == nullptr && n != 0) refuse_it({"the list of tensors is null but has ", n, " of them"});
    for (std::size_t i = 0; i != n; ++i) {
      if (tensors[i].wire != 0 && tensors[i].wire != tensors[i].dtype) {
        refuse_it({"tensor ", i, " of dtype ", tensors[i].dtype, " has wire ", tensors[i].wire,
                   "; the engine sends all tensors of a list in one type: pass 0 here, and the wire in hvd_submit"});
      }
      tensor(tensors[i].in, tensors[i].out, tensors[i].count, tensors[i].dtype);
    }
    return *this;
  }
  /// A tensor whose result the engine allocates.
  submission& input(const void* in, std::size_t count, int type) {
    has_output_ = true;
    return add(in, nullptr, count, type);
  }
  submission& splits(const std::size_t* counts) {
    if (counts == nullptr) return *this;
    // A rank of the process set has one entry for each rank of it.
    const int ranks = process_set_ == 0 ? engine_->size() : static_cast<int>(engine_->process_set(process_set_).size());
    request_.tensors.back().splits.assign(counts, counts + ranks);
    return *this;
  }

  void submit() {
    *handle_ = number_of([&] { return engine_->submit(std::move(request_), process_set_); }, has_output_);
  }

 private:
  [[noreturn]] void refuse_it(std::initializer_list<detail::piece> what) const {
    refuse(function_,
           {"\"", request_.name, "\" on rank ", engine_->rank(), " of ", engine_->size(), ": ", detail::joined(what)});
  }
  submission& add(const void* in, void* out, std::size_t count, int type) {
    if (!is_dtype(type)) refuse_it({"dtype ", type, " is not an element type", allowed_dtypes});
    request_.tensors.push_back(
        detail::tensor_of({checked::bytes(in), checked::bytes(out), count, static_cast<dtype>(type)}));
    return *this;
  }

  std::string_view function_;
  std::shared_ptr<engine> engine_;
  hvd_handle* handle_;
  request request_;
  int process_set_ = 0;
  bool has_output_ = false;
};

inline void wait(hvd_handle number, double seconds) {
  const hvd::handle end = handle_of(number, "wait").first;
  if (std::isnan(seconds)) refuse("wait", {"the time limit is not a number; pass seconds, or -1 for no limit"});
  end.wait(seconds < 0 ? std::nullopt : std::optional(std::chrono::duration<double>(seconds)));
}

/// Memory that lives as long as the engine.
inline std::byte* alloc_bucket(hvd_engine number, std::size_t bytes) {
  std::shared_ptr<std::byte> made = engine_of(number, "engine_alloc_bucket")->alloc_bucket(bytes);
  const table::pinned held(number, kind::engine, "engine_alloc_bucket");
  auto& e = static_cast<engine_object&>(held.what());
  const std::lock_guard lock(e.mutex);
  return e.buckets.emplace_back(std::move(made)).get();
}

/// The handle of an operation that is done, and true if it has an output; throws the operation's error.
inline std::pair<hvd::handle, bool> done(hvd_handle number, std::string_view function) {
  std::pair<hvd::handle, bool> found = handle_of(number, function);
  if (!found.first.poll()) refuse(function, {"the operation of handle ", number, " is not done; call hvd_wait before"});
  found.first.wait();
  return found;
}

inline void received_splits(hvd_handle number, std::size_t* counts) {
  require("received_splits", counts, "counts", "a size_t for each rank");
  const auto [end, has_output] = done(number, "received_splits");
  if (!has_output || end.output().received_splits.empty()) {
    refuse("received_splits", {"the operation of handle ", number, " is not an alltoall"});
  }
  std::copy(end.output().received_splits.begin(), end.output().received_splits.end(), counts);
}

inline void last_joined(hvd_handle number, int* rank) {
  require("last_joined", rank, "rank", "an int");
  *rank = done(number, "last_joined").first.last_joined();
  if (*rank < 0) refuse("last_joined", {"the operation of handle ", number, " is not a join"});
}

inline void output(hvd_handle number, const void** data, std::size_t* count) {
  require("output", data, "data", "a pointer");
  require("output", count, "count", "a size_t");
  *data = nullptr;
  *count = 0;
  const auto [end, has_output] = done(number, "output");
  if (!has_output) {
    refuse("output", {"the operation of handle ", number,
                      " has no output of its own: its result, if it has one, is in "
                      "the memory that you passed"});
  }
  const result& r = end.output();
  std::size_t elements = 1;
  for (const std::size_t n : r.shape) elements *= n;
  *data = r.data.get();
  *count = elements;
}

}  // namespace hvd::inline HVD_ABI::c
