// tests/gpu/standin/communicator.cpp: how communicators of the stand-in for NCCL begin and end.
#include "gpu/standin/nccl.hpp"

#include <hvd/cuda/driver.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

namespace hvd::standin {

namespace {

struct library_state {
  std::mutex mutex{};
  std::map<communicator*, std::shared_ptr<communicator>> live{};
  char last_error[500] = "";
  static library_state& get() {
    static library_state* const once = new library_state;
    return *once;
  }
};

// What NCCL thinks of two ranks of a host on one GPU depends on its version.
nccl_result check_ranks(const mesh& all) {
  const int version = library_version();
  for (int q = 0; q != all.size(); ++q) {
    const rank_info& other = all.info(q);
    if (other.version != version) {
      return failed(nccl_invalid_usage, "Mismatched NCCL version detected: rank " + std::to_string(q) + " has " +
                                            std::to_string(other.version) + ", this one " + std::to_string(version));
    }
    for (int p = 0; p != q; ++p) {
      const rank_info& one = all.info(p);
      const bool same_gpu = version >= 23007 ? one.uuid == other.uuid : std::strcmp(one.bus, other.bus) == 0;
      if (!same_gpu || std::strcmp(one.host, other.host) != 0) continue;
      if (version < 23000) {
        return failed(nccl_invalid_usage, "Duplicate GPU detected : rank " + std::to_string(p) + " and rank " +
                                              std::to_string(q) + " both on CUDA device " + one.bus);
      }
      if (one.multi_rank != 0 && other.multi_rank != 0) continue;
      return failed(nccl_invalid_usage,
                    "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
                    "configuration.");
    }
  }
  return nccl_success;
}

rank_info describe(int device) {
  rank_info mine{};
  const auto& gpu = *find_gpu();
  cu_uuid uuid{};
  gpu.function<decltype(cuda_driver::device_uuid)>("cuDeviceGetUuid_v2")(&uuid, device);
  mine.uuid = uuid.bytes;
  gpu.function<decltype(cuda_driver::device_pci)>("cuDeviceGetPCIBusId")(mine.bus, sizeof mine.bus, device);
  const char* const host = std::getenv("NCCL_HOSTID");
  std::snprintf(mine.host, sizeof mine.host, "%s", host == nullptr ? "" : host);
  mine.version = library_version();
  mine.multi_rank = static_cast<int>(number_of("NCCL_MULTI_RANK_GPU_ENABLE", 0));
  return mine;
}

}  // namespace

nccl_result read_config(const nccl_config* given, nccl_config& to) {
  if (given == nullptr) return nccl_success;
  if (given->magic != 0xcafebeef) {
    return failed(nccl_invalid_argument, "the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
  }
  if (given->size < offsetof(nccl_config, cga_cluster_size)) {
    return failed(nccl_invalid_argument, "the configuration's size is too small");
  }
  std::memcpy(static_cast<void*>(&to), given, std::min(given->size, sizeof to));
  const auto wrong = [](int value, int least) { return value != INT_MIN && value < least; };
  if (wrong(to.blocking, 0) || to.blocking > 1 || wrong(to.min_ctas, 1) || wrong(to.max_ctas, 1) ||
      (to.min_ctas != INT_MIN && to.max_ctas != INT_MIN && to.min_ctas > to.max_ctas)) {
    return failed(nccl_invalid_argument, "the configuration has a value that is out of range");
  }
  // Counted for tests, which see so what NCCL was given.
  const auto text = [](int value) { return value == INT_MIN ? std::string("-") : std::to_string(value); };
  const std::string network = to.net_name == nullptr ? "-" : to.net_name;
  return injected(("configuration " + text(to.min_ctas) + " " + text(to.max_ctas) + " " + network).c_str());
}

nccl_result allocate(communicator& c) {
  const int code = find_gpu()->alloc(&c.buffers, 4096, 4096);
  return code == cu_success ? nccl_success : failed(nccl_unhandled_cuda_error, "no memory for a communicator");
}

nccl_result connect(communicator& c) {
  const int version = library_version();
  c.connected = version < 22200 || (version >= 22600 && !c.blocking) || number_of("NCCL_RUNTIME_CONNECT", 1) == 0;
  try {
    c.all = std::make_unique<mesh>(c.name, c.rank, c.size, describe(c.device),
                                   [&] { return c.stop || (c.parent && c.parent->aborted); });
  } catch (const std::exception& e) {
    return failed(nccl_system_error, e.what());
  }
  const nccl_result code = check_ranks(*c.all);
  c.connected_once = code == nccl_success;
  return code;
}

static void set_state(communicator& c, int code) {
  int expected = nccl_in_progress;
  c.state.compare_exchange_strong(expected, code);
}

nccl_result perform(bool blocking, const std::vector<std::shared_ptr<communicator>>& whose,
                    const std::function<nccl_result()>& work) {
  if (blocking) return work();
  for (const auto& c : whose) begin_job(c);
  std::thread([=] {
    const nccl_result code = work();
    for (const auto& c : whose) set_state(*c, code);
  }).detach();
  return nccl_in_progress;
}

nccl_comm keep(const std::shared_ptr<communicator>& c) {
  auto& l = library_state::get();
  const std::lock_guard lock(l.mutex);
  l.live[c.get()] = c;
  return reinterpret_cast<nccl_comm>(c.get());
}

void forget(const std::shared_ptr<communicator>& c) {
  {
    auto& l = library_state::get();
    const std::lock_guard lock(l.mutex);
    l.live.erase(c.get());
  }
  c->starter = {};
  if (c->buffers != 0) {
    find_gpu()->function<decltype(cuda_driver::free)>("cuMemFree_v2")(std::exchange(c->buffers, 0));
  }
  if (c->state != nccl_in_progress && c->all) c->all->leave();
}

static thread_local std::weak_ptr<communicator> unjoined;
void begin_job(const std::shared_ptr<communicator>& c) {
  c->state = nccl_in_progress;
  if (library_version() >= 22600) return;
  if (const auto before = unjoined.lock(); before && before->starter == std::this_thread::get_id()) {
    find_gpu()->violation("a call was made before the thread of the call before it was joined");
  }
  c->starter = std::this_thread::get_id();
  unjoined = c;
}
void join_job(communicator& c) {
  const auto starter = std::exchange(c.starter, std::thread::id{});
  if (starter != std::thread::id{} && starter != std::this_thread::get_id()) {
    find_gpu()->violation("a thread joins what another thread's call has started");
  }
}

void end_works(communicator& c) {
  const std::lock_guard lock(c.mutex);
  c.stop = true;
  c.changed.notify_all();
}

nccl_result derive(const std::shared_ptr<communicator>& from, nccl_comm* made, const nccl_config* config, bool none,
                   std::function<nccl_result(communicator&)> agree) {
  auto child = std::make_shared<communicator>();
  child->device = from->device;
  child->parent = from;
  child->config = from->config;
  if (const nccl_result code = read_config(config, child->config); code != nccl_success) return code;
  if (const nccl_result code = allocate(*child); code != nccl_success) return code;
  child->blocking = child->config.blocking != 0;
  *made = nullptr;
  // As NCCL: the new communicator is there when it is complete, only the state of the old one tells so, and the call
  // itself returns success.
  const auto work = [=] {
    nccl_result code = injected("ncclCommInitRankFunc");
    if (code == nccl_success) code = agree(*child);
    if (code == nccl_success && !none) code = connect(*child);
    child->parent = nullptr;
    if (code == nccl_success && !none) __atomic_store_n(made, keep(child), __ATOMIC_RELEASE);
    return code;
  };
  const nccl_result code = perform(child->blocking, {from}, work);
  return code == nccl_in_progress ? nccl_success : code;
}

unsigned long number_of(const char* variable, unsigned long otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoul(text, nullptr, 10);
}

const standin_gpu* find_gpu() {
  static const standin_gpu* const found = []() -> const standin_gpu* {
    try {
      return &standin_gpu::get();
    } catch (const std::exception&) {
      return nullptr;
    }
  }();
  return found;
}

nccl_result injected(const char* symbol) {
  if (find_gpu() == nullptr) return failed(nccl_unhandled_cuda_error, "HVD_CUDA_LIBRARY names no stand-in");
  const int code = find_gpu()->take_failure(symbol);
  return code == 0 ? nccl_success : failed(code, std::string(symbol) + " fails as a test wants");
}

int library_version() {
#if defined(HVD_STANDIN_NCCL_OLD)
  return static_cast<int>(number_of("HVD_STANDIN_NCCL_VERSION", 21806));
#else
  return static_cast<int>(number_of("HVD_STANDIN_NCCL_VERSION", 22809));
#endif
}

nccl_result failed(nccl_result code, const std::string& sentence) {
  auto& l = library_state::get();
  const std::lock_guard lock(l.mutex);
  std::snprintf(l.last_error, sizeof l.last_error, "%s", sentence.c_str());
  return code;
}

std::string last_sentence() {
  auto& l = library_state::get();
  const std::lock_guard lock(l.mutex);
  return l.last_error;
}

std::shared_ptr<communicator> find(nccl_comm handle) {
  auto& l = library_state::get();
  const std::lock_guard lock(l.mutex);
  const auto found = l.live.find(reinterpret_cast<communicator*>(handle));
  return found == l.live.end() ? nullptr : found->second;
}

nccl_result state_of(const communicator& c) {
  const int state = c.state;
  return state == nccl_success ? c.network.load() : state;
}

nccl_result ensure_ready(communicator& c) {
  const nccl_result state = state_of(c);
  if (state == nccl_in_progress) {
    return failed(nccl_invalid_argument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  if (state == nccl_success) join_job(c);
  return state;
}

nccl_result ready(const std::shared_ptr<communicator>& c) {
  if (!c) return failed(nccl_invalid_argument, "this is no communicator, or one that was destroyed or aborted");
  if (c->stop) return failed(nccl_invalid_usage, "the communicator was revoked");
  if (c->finalized) return failed(nccl_invalid_argument, "the communicator was finalized");
  return ensure_ready(*c);
}

bool communicator::drain() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return over == queued || stop; });
  return !stop;
}

bool communicator::exchange(const void* mine, std::size_t bytes, std::vector<std::byte>& of_all) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::byte> copy(bytes);
  std::memcpy(copy.data(), mine, bytes);
  of_all.resize(n * bytes);
  std::vector<mesh::transfer> transfers;
  for (std::size_t q = 0; q != n; ++q) {
    const int peer = static_cast<int>(q);
    transfers.push_back({.send = true, .peer = peer, .data = copy.data(), .bytes = bytes});
    transfers.push_back({.peer = peer, .data = of_all.data() + q * bytes, .bytes = bytes});
  }
  return all->move(
      mesh::of_hosts, transfers, [&] { return stop.load(); }, [](const std::string&) {});
}

}  // namespace hvd::standin
