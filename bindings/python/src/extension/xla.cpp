// xla.cpp: the collectives as a handler of XLA. Calls from programs never take the GIL.

#include "xla.hpp"

#include "gil.hpp"
#include "xla_ffi.hpp"

#include <hvd/engine/request.hpp>
#include <hvd/error.hpp>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

namespace hvd_python {
namespace {

namespace nb = nanobind;

/// The error of a call. `refused`: no rank can do this call, which is a ValueError in Python.
struct problem {
  std::string text;
  std::string_view kind;
  int rank = -1;
  bool refused = false;
};

problem refusal(std::string text) { return {std::move(text), hvd::name(hvd::error::invalid_argument), -1, true}; }
problem of_submission(const hvd::error& e) {
  return {e.what(), hvd::name(e.kind()), e.rank(), e.kind() == hvd::error::invalid_argument};
}

/// State shared by programs and Python.
class shared {
 public:
  /// Never destroyed: programs may run while the process ends. A forked child gets its own one, because a thread
  /// missing in the child may hold the lock.
  static shared& instance() {
    static std::atomic<shared*> all = new shared;
    shared* now = all.load();
    if (now->owner_ == ::getpid()) return *now;
    auto own = std::make_unique<shared>();
    return all.compare_exchange_strong(now, own.get()) ? *own.release() : *now;
  }

  void set_current(std::weak_ptr<session> s) {
    const std::lock_guard lock(mutex_);
    current_ = std::move(s);
  }
  std::shared_ptr<session> current() {
    const std::lock_guard lock(mutex_);
    return current_.lock();
  }

  void remember(problem p) {
    const std::lock_guard lock(mutex_);
    if (problems_.size() == 16) problems_.pop_front();  // nobody has read them
    problems_.push_back(std::move(p));
  }
  std::deque<problem> take_problems() {
    const std::lock_guard lock(mutex_);
    return std::exchange(problems_, {});
  }

 private:
  const pid_t owner_ = ::getpid();
  std::mutex mutex_;
  std::weak_ptr<session> current_;
  std::deque<problem> problems_;
};

/// One operation in the attribute "how", as these numbers, on the next `tensors` tensors; the factors are the bits of
/// doubles.
struct how_entry {
  std::int64_t tensors, op, wire, prescale, postscale, name_length;
};
constexpr std::size_t numbers_per_operation = 6, numbers_before = 3;

/// The attributes of a program. They contain all it needs, and nothing is kept in this process: XLA may store programs
/// in files.
struct call {
  std::int64_t process_set = 0;  // -1: a trial that copies its input
  hvd::operation kind = hvd::operation::allreduce;
  int root = 0;
  std::vector<how_entry> each;
  std::string_view names;  // concatenated
};

const void* find(const xla_ffi::attributes& all, std::string_view name, int type) {
  for (std::int64_t i = 0; i != all.count; ++i) {
    if (std::string_view(all.names[i]->data, all.names[i]->size) == name)
      return all.types[i] == type ? all.each[i] : nullptr;
  }
  return nullptr;
}

/// The call, on `count` tensors; empty if the attributes are others.
std::optional<call> read_call(const xla_ffi::attributes& all, std::size_t count) {
  const auto* const how = static_cast<const xla_ffi::array*>(find(all, "how", xla_ffi::of_array));
  const auto* const names = static_cast<const xla_ffi::bytes*>(find(all, "names", xla_ffi::of_string));
  if (how == nullptr || names == nullptr || xla_ffi::dtype_of(how->type) != hvd::dtype::int64) return std::nullopt;
  const std::span numbers(static_cast<const std::int64_t*>(how->data), how->count);
  if (numbers.size() < numbers_before || (numbers.size() - numbers_before) % numbers_per_operation != 0)
    return std::nullopt;
  call c{.process_set = numbers[0],
         .kind = static_cast<hvd::operation>(numbers[1]),
         .root = static_cast<int>(numbers[2]),
         .each = {},
         .names = {names->data, names->size}};
  std::size_t length = 0, tensors = 0;
  for (std::size_t i = numbers_before; i != numbers.size(); i += numbers_per_operation) {
    c.each.push_back({numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3], numbers[i + 4], numbers[i + 5]});
    tensors += static_cast<std::size_t>(c.each.back().tensors);
    length += static_cast<std::size_t>(c.each.back().name_length);
  }
  return length == c.names.size() && tensors == count ? std::optional(c) : std::nullopt;
}

const xla_ffi::buffer* buffer_of(const xla_ffi::values& all, std::size_t i) {
  const auto* const b = static_cast<const xla_ffi::buffer*>(all.each[i]);
  return all.types[i] == 1 && b->size >= sizeof(xla_ffi::buffer) ? b : nullptr;
}

/// A tensor, and the memory of XLA for its result.
struct tensor_pair {
  hvd::tensor in;
  std::span<std::byte> out;
};

std::size_t elements(const xla_ffi::buffer& b) {
  std::size_t all = 1;
  for (const std::int64_t length : std::span(b.lengths, static_cast<std::size_t>(b.rank)))
    all *= static_cast<std::size_t>(length);
  return all;
}

/// Argument `i` as a tensor, and result `i`; empty if they are not of one type that hvd has.
std::optional<tensor_pair> tensor_of(const xla_ffi::frame& f, std::size_t i) {
  const xla_ffi::buffer* const in = buffer_of(f.arguments, i);
  const xla_ffi::buffer* const out = buffer_of(f.results, i);
  if (in == nullptr || out == nullptr || in->type != out->type) return std::nullopt;
  const std::optional<hvd::dtype> type = xla_ffi::dtype_of(in->type);
  if (!type) return std::nullopt;
  tensor_pair t{.in = {}, .out = {static_cast<std::byte*>(out->data), elements(*out) * hvd::size_of(*type)}};
  t.in.in = static_cast<const std::byte*>(in->data);
  t.in.type = *type;
  for (const std::int64_t length : std::span(in->lengths, static_cast<std::size_t>(in->rank)))
    t.in.shape.push_back(static_cast<std::size_t>(length));
  return t;
}

std::size_t bytes_of(const hvd::tensor& t) {
  return std::accumulate(t.shape.begin(), t.shape.end(), hvd::size_of(t.type), std::multiplies<>());
}

/// Copies into a result of the same size; false if it has another one.
bool copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (from.size() == to.size() && !to.empty()) std::memcpy(to.data(), from.data(), to.size());
  return from.size() == to.size();
}
bool copy(const tensor_pair& t) { return copy({t.in.in, bytes_of(t.in)}, t.out); }

/// The last argument and result of a call only order it: a number, or a token of XLA's, which has no memory.
bool pass_on_order(const xla_ffi::frame& f) {
  const auto last = static_cast<std::size_t>(f.arguments.count - 1);
  const xla_ffi::buffer* const in = buffer_of(f.arguments, last);
  if (in != nullptr && in->type == xla_ffi::token) return true;
  const std::optional<tensor_pair> t = tensor_of(f, last);
  return t && copy(*t);
}

/// Operations that use a call's memory. The call ends after them.
struct in_flight {
  std::vector<hvd::handle> handles;

  in_flight() = default;
  in_flight(const in_flight&) = delete;
  in_flight& operator=(const in_flight&) = delete;
  ~in_flight() { wait(); }

  /// Waits for all of them. Returns the first error.
  std::optional<hvd::error> wait() const {
    std::optional<hvd::error> first;
    for (const hvd::handle& h : handles) {
      try {
        h.wait();
      } catch (const hvd::error& e) {
        if (!first) first = e;
      }
    }
    return first;
  }
};

/// Whether the engine writes a result of this kind into XLA's memory; other results may have any number of rows.
bool in_place(hvd::operation kind) noexcept {
  return kind == hvd::operation::allreduce || kind == hvd::operation::broadcast;
}

hvd::request request_for(const call& c, const how_entry& how, std::string_view name,
                         std::span<const tensor_pair> tensors) {
  hvd::request r;
  r.kind = c.kind;
  r.even = c.kind == hvd::operation::allgather || c.kind == hvd::operation::alltoall;  // as compiled
  r.root = c.root;
  r.name = name;
  for (const tensor_pair& t : tensors) {
    r.tensors.push_back(t.in);
    if (in_place(c.kind)) r.tensors.back().out = t.out.data();
  }
  r.op = static_cast<hvd::reduce_op>(how.op);
  r.prescale = std::bit_cast<double>(how.prescale);
  r.postscale = std::bit_cast<double>(how.postscale);
  if (how.wire >= 0) r.wire = static_cast<hvd::dtype>(how.wire);
  return r;
}

/// Copies the results of an operation out of the engine's memory. Returns the problem, if there is one.
std::optional<problem> take_results(const hvd::handle& h, std::string_view name, std::span<const tensor_pair> tensors) {
  for (std::size_t i = 0; i != tensors.size(); ++i) {
    const hvd::result& r = h.output(i);
    hvd::tensor t;
    t.type = r.type;
    t.shape = r.shape;
    if (!copy({r.data.get(), bytes_of(t)}, tensors[i].out)) {
      return refusal("hvd: \"" + std::string(name) + "\" gives " + std::to_string(bytes_of(t)) +
                     " bytes, and the compiled program expects " + std::to_string(tensors[i].out.size()) +
                     ": ranks have other numbers of rows, or the program was compiled for another number of ranks"
                     " (see jax.clear_caches)");
    }
  }
  return std::nullopt;
}

/// Submits all operations and waits for all of them. Returns the first problem.
std::optional<problem> run(const call& c, std::span<const tensor_pair> tensors) {
  // Its own reference: another thread may close the job meanwhile.
  const std::shared_ptr<session> s = shared::instance().current();
  if (!s) return refusal("Horovod has not been initialized; use hvd.init().");
  std::optional<problem> first;
  in_flight submitted;
  submitted.handles.reserve(c.each.size());
  std::size_t position = 0, at = 0;
  for (const how_entry& how : c.each) {
    const auto length = static_cast<std::size_t>(how.name_length);
    const auto count = static_cast<std::size_t>(how.tensors);
    hvd::request r = request_for(c, how, c.names.substr(position, length), tensors.subspan(at, count));
    position += length;
    at += count;
    try {
      // This thread waits next, and does the work itself.
      submitted.handles.push_back(s->submit(std::move(r), static_cast<int>(c.process_set), false));
    } catch (const hvd::error& e) {  // other ranks wait for the rest
      if (!first) first = of_submission(e);
    }
  }
  const std::optional<hvd::error> failed = submitted.wait();
  if (!first && failed) first = problem{failed->what(), hvd::name(failed->kind()), failed->rank()};
  if (in_place(c.kind) || first) return first;
  at = position = 0;
  for (std::size_t i = 0; i != c.each.size() && !first; ++i) {
    const auto length = static_cast<std::size_t>(c.each[i].name_length);
    const auto count = static_cast<std::size_t>(c.each[i].tensors);
    first = take_results(submitted.handles[i], c.names.substr(position, length), tensors.subspan(at, count));
    position += length;
    at += count;
  }
  return first;
}

std::optional<problem> execute(const xla_ffi::frame& f) {
  const auto other_version = [] {
    return refusal("hvd: a compiled program calls hvd_collective with the attributes of another version of hvd");
  };
  if (f.arguments.count < 1 || f.results.count != f.arguments.count) return other_version();
  const auto count = static_cast<std::size_t>(f.arguments.count) - 1;
  const std::optional<call> c = read_call(f.attributes, count);
  if (!c || !pass_on_order(f)) return other_version();
  std::vector<tensor_pair> tensors;
  for (std::size_t i = 0; i != count; ++i) {
    std::optional<tensor_pair> t = tensor_of(f, i);
    if (!t) return refusal("hvd: a compiled program calls hvd_collective with a type that hvd does not support");
    if (in_place(c->kind) && bytes_of(t->in) != t->out.size()) return other_version();
    tensors.push_back(*std::move(t));
  }
  if (c->process_set >= 0) return run(*c, tensors);
  return std::ranges::all_of(tensors, [](const tensor_pair& t) { return copy(t); }) ? std::nullopt
                                                                                    : std::optional(other_version());
}

std::atomic<int> minor_of_tensorflow = 1;  // of the interface with which the handler is registered

xla_ffi::failure* handle_call(xla_ffi::frame* f) noexcept {
  for (xla_ffi::extension* e = f->first; e != nullptr; e = e->next) {
    if (e->type != 1) continue;
    xla_ffi::description& asked = *reinterpret_cast<xla_ffi::describe_extension*>(e)->description;
    asked.version.size = sizeof(asked.version);
    asked.version.major = 0;
    // TensorFlow and JAX have an XLA each; that of TensorFlow 2.20 passes no interface here.
    const int minor = f->api != nullptr ? f->api->version.minor : minor_of_tensorflow.load();
    asked.version.minor = std::min(minor, xla_ffi::newest_minor);
    asked.traits = 0;
    return nullptr;
  }
  std::optional<problem> why;
  try {
    // The structs in the frame must not have grown, because that moves what follows them.
    if (f->size < sizeof(xla_ffi::frame) || f->arguments.size != sizeof(xla_ffi::values) ||
        f->results.size != sizeof(xla_ffi::values) || f->attributes.size != sizeof(xla_ffi::attributes))
      why = refusal("hvd: this XLA calls hvd in a way that hvd does not support");
    else
      why = execute(*f);
  } catch (const std::exception& e) {
    why = problem{std::string("hvd: ") + e.what(), hvd::name(hvd::error::no_memory)};
  }
  if (!why) return nullptr;
  constexpr int internal = 13;
  xla_ffi::create_failure arguments{sizeof(arguments), nullptr, why->text.c_str(), internal};
  xla_ffi::failure* const failure = f->api->create(&arguments);
  shared::instance().remember(*std::move(why));
  return failure;
}

using get_api = const xla_ffi::api*();

/// TensorFlow's function that returns its XLA's interface, or null. `path`: the library that has it.
get_api* find_api(const char* path) {
  constexpr const char* name = "_ZN3xla3ffi12GetXlaFfiApiEv";  // xla::ffi::GetXlaFfiApi()
  void* found = ::dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) {
    // The library stays loaded, because this reference is never released.
    if (void* const library = ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD)) found = ::dlsym(library, name);
  }
  return reinterpret_cast<get_api*>(found);
}

/// Registers the handler with TensorFlow's XLA. Returns an empty string, or the reason for a failure.
std::string register_handler(const char* path) {
  get_api* const get = find_api(path);
  if (get == nullptr) return "this TensorFlow does not export XLA's interface for such calls";
  const xla_ffi::api* const api = get();
  if (api == nullptr || api->size < sizeof(xla_ffi::api) || api->version.major != 0 || api->version.minor < 1 ||
      api->version.minor > xla_ffi::newest_minor) {
    return "the XLA of this TensorFlow has a version of its interface for such calls other than 0.1 to 0.3";
  }
  minor_of_tensorflow = api->version.minor;
  constexpr std::string_view name = "hvd_collective", platform = "Host";
  xla_ffi::registration r{};
  r.size = sizeof(r);
  r.name = {name.data(), name.size()};
  r.platform = {platform.data(), platform.size()};
  r.execute = &handle_call;
  xla_ffi::failure* const refused = api->register_handler(&r);
  if (refused == nullptr) return {};
  xla_ffi::read_failure text{sizeof(text), nullptr, refused, nullptr};
  api->read(&text);
  std::string why = std::string("XLA refuses the call: ") + (text.message != nullptr ? text.message : "");
  xla_ffi::destroy_failure end{sizeof(end), nullptr, refused};
  api->destroy(&end);
  return why;
}

}  // namespace

void publish(std::weak_ptr<session> current) { shared::instance().set_current(std::move(current)); }

void define_xla(nb::module_& m) {
  m.def("register_xla", [](const char* path) {
    static const std::string why = register_handler(path);  // XLA accepts each name once
    return nb::str(why.c_str(), why.size());
  });
  m.def("xla_handler", [] { return nb::capsule(reinterpret_cast<void*>(&handle_call)); });
  m.def("xla_failures", [] {
    nb::list result;
    for (const problem& p : shared::instance().take_problems()) {
      result.append(nb::make_tuple(nb::str(p.text.c_str(), p.text.size()), nb::str(p.kind.data(), p.kind.size()),
                                   p.rank, p.refused));
    }
    return result;
  });
}

}  // namespace hvd_python
