// xla.cpp: allreduce as a handler of XLA. Calls from programs never take the GIL.

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
#include <memory>
#include <mutex>
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

/// One tensor in the attribute "how", as these numbers; the factors are the bits of doubles.
struct how_entry {
  std::int64_t op, wire, prescale, postscale, name_length;
};
constexpr std::size_t entry_numbers = 5;

/// The attributes of a program. They contain all it needs, and nothing is kept in this process: XLA may store programs
/// in files.
struct call {
  std::int64_t process_set = 0;  // -1: a trial that copies its input
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

std::optional<call> read_call(const xla_ffi::attributes& all) {
  const auto* const how = static_cast<const xla_ffi::array*>(find(all, "how", xla_ffi::of_array));
  const auto* const names = static_cast<const xla_ffi::bytes*>(find(all, "names", xla_ffi::of_string));
  if (how == nullptr || names == nullptr || xla_ffi::dtype_of(how->type) != hvd::dtype::int64) return std::nullopt;
  const std::span numbers(static_cast<const std::int64_t*>(how->data), how->count);
  if (numbers.size() % entry_numbers != 1) return std::nullopt;
  call c{.process_set = numbers[0], .each = {}, .names = {names->data, names->size}};
  std::size_t length = 0;
  for (std::size_t i = 1; i != numbers.size(); i += entry_numbers) {
    c.each.push_back({numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3], numbers[i + 4]});
    length += static_cast<std::size_t>(numbers[i + 4]);
  }
  return length == c.names.size() ? std::optional(c) : std::nullopt;
}

const xla_ffi::buffer* buffer_of(const xla_ffi::values& all, std::size_t i) {
  const auto* const b = static_cast<const xla_ffi::buffer*>(all.each[i]);
  return all.types[i] == 1 && b->size >= sizeof(xla_ffi::buffer) ? b : nullptr;
}

/// Argument `i` as a tensor whose result is result `i`; empty if they are not of one known type and shape.
std::optional<hvd::tensor> tensor_of(const xla_ffi::frame& f, std::size_t i) {
  const xla_ffi::buffer* const in = buffer_of(f.arguments, i);
  const xla_ffi::buffer* const out = buffer_of(f.results, i);
  if (in == nullptr || out == nullptr || in->type != out->type) return std::nullopt;
  const std::optional<hvd::dtype> type = xla_ffi::dtype_of(in->type);
  const std::span lengths(in->lengths, static_cast<std::size_t>(in->rank));
  if (!type || !std::ranges::equal(lengths, std::span(out->lengths, static_cast<std::size_t>(out->rank))))
    return std::nullopt;
  hvd::tensor t;
  t.in = static_cast<const std::byte*>(in->data);
  t.out = static_cast<std::byte*>(out->data);
  t.type = *type;
  for (const std::int64_t length : lengths) t.shape.push_back(static_cast<std::size_t>(length));
  return t;
}

void copy(const hvd::tensor& t) {
  std::size_t size = hvd::size_of(t.type);
  for (const std::size_t length : t.shape) size *= length;
  if (size != 0) std::memcpy(t.out, t.in, size);
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

hvd::request request_for(const how_entry& how, std::string_view name, hvd::tensor t) {
  hvd::request r;
  r.kind = hvd::operation::allreduce;
  r.name = name;
  r.tensors.push_back(std::move(t));
  r.op = static_cast<hvd::reduce_op>(how.op);
  r.prescale = std::bit_cast<double>(how.prescale);
  r.postscale = std::bit_cast<double>(how.postscale);
  if (how.wire >= 0) r.wire = static_cast<hvd::dtype>(how.wire);
  return r;
}

/// Submits all tensors and waits for all of them. Returns the first problem.
std::optional<problem> allreduce(const call& c, std::vector<hvd::tensor> tensors) {
  // Its own reference: another thread may close the job meanwhile.
  const std::shared_ptr<session> s = shared::instance().current();
  if (!s) return refusal("Horovod has not been initialized; use hvd.init().");
  std::optional<problem> first;
  in_flight submitted;
  submitted.handles.reserve(tensors.size());
  std::size_t position = 0;
  for (std::size_t i = 0; i != tensors.size(); ++i) {
    const auto length = static_cast<std::size_t>(c.each[i].name_length);
    hvd::request r = request_for(c.each[i], c.names.substr(position, length), std::move(tensors[i]));
    position += length;
    try {
      // This thread waits next, and does the work itself.
      submitted.handles.push_back(s->submit(std::move(r), static_cast<int>(c.process_set), false));
    } catch (const hvd::error& e) {  // other ranks wait for the rest
      if (!first) first = of_submission(e);
    }
  }
  const std::optional<hvd::error> failed = submitted.wait();
  if (!first && failed) first = problem{failed->what(), hvd::name(failed->kind()), failed->rank()};
  return first;
}

std::optional<problem> execute(const xla_ffi::frame& f) {
  const std::optional<call> c = read_call(f.attributes);
  const auto count = static_cast<std::size_t>(f.arguments.count);
  // The last argument and result only order the calls: see hvd/tensorflow/xla.py.
  if (!c || f.results.count != f.arguments.count || c->each.size() + 1 != count)
    return refusal("hvd: a compiled program calls hvd_allreduce with the attributes of another version of hvd");
  std::vector<hvd::tensor> tensors;
  for (std::size_t i = 0; i != count; ++i) {
    std::optional<hvd::tensor> t = tensor_of(f, i);
    if (!t) return refusal("hvd: a compiled program calls hvd_allreduce with a type that hvd does not support");
    tensors.push_back(*std::move(t));
  }
  copy(tensors.back());
  tensors.pop_back();
  if (c->process_set >= 0) return allreduce(*c, std::move(tensors));
  for (const hvd::tensor& t : tensors) copy(t);
  return std::nullopt;
}

int minor_version = 0;  // of the loaded XLA

xla_ffi::failure* handle_call(xla_ffi::frame* f) noexcept {
  for (xla_ffi::extension* e = f->first; e != nullptr; e = e->next) {
    if (e->type != 1) continue;
    xla_ffi::description& asked = *reinterpret_cast<xla_ffi::describe_extension*>(e)->description;
    asked.version.size = sizeof(asked.version);
    asked.version.major = 0;
    asked.version.minor = minor_version;
    asked.traits = 0;
    return nullptr;
  }
  std::optional<problem> why;
  try {
    if (f->size < sizeof(xla_ffi::frame))
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

/// Registers the handler. Returns an empty string, or the reason for a failure.
std::string register_handler(const char* path) {
  get_api* const get = find_api(path);
  if (get == nullptr) return "this TensorFlow does not export XLA's interface for such calls";
  const xla_ffi::api* const api = get();
  if (api == nullptr || api->size < sizeof(xla_ffi::api) || api->version.major != 0 || api->version.minor < 1 ||
      api->version.minor > 2) {
    return "the XLA of this TensorFlow has a version of its interface for such calls other than 0.1 and 0.2";
  }
  minor_version = api->version.minor;
  constexpr std::string_view name = "hvd_allreduce", platform = "Host";
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
