// tests/gpu/through_device.hpp: NCCL's collectives on buffers of the host, for the test body that all transports share.
#pragma once

#include <hvd/algorithm/native.hpp>
#include <hvd/transport/nccl.hpp>

#include <gpu/ranks.hpp>
#include <transport/launchers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hvd::test {

/// Copies what a call is about to the device, runs the call there, in turns as one that waits and on a stream, and
/// copies it back. Buffers have the same distance from each other, and from a boundary, as on the host; the bytes
/// around them must stay as they are.
class through_device {
 public:
  explicit through_device(NcclTransport gpu) : gpu_(std::move(gpu)), stream_(std::make_unique<own_stream>(gpu_)) {}

  [[nodiscard]] int rank() const { return gpu_.rank(); }
  [[nodiscard]] int size() const { return gpu_.size(); }
  void barrier() { gpu_.barrier(); }
  [[nodiscard]] through_device split(int color, int key) { return through_device(gpu_.split(color, key)); }
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    const std::shared_ptr<T[]> memory(new T[n]());
    return {memory.get(), n, memory};
  }
  [[nodiscard]] NcclTransport& gpu() { return gpu_; }

  template <class Call>
    requires Native<NcclTransport, Call>
  bool native(const Call& c) {
    const auto [in_bytes, out_bytes] = lengths(c);
    Call there = c;
    const auto at = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p); };
    const bool together =
        in_bytes != 0 && out_bytes != 0 && at(c.in) < at(c.out) + out_bytes && at(c.out) < at(c.in) + in_bytes;
    mirror in(gpu_, together ? std::min<const std::byte*>(c.in, c.out) : c.in,
              together ? std::max(at(c.in) + in_bytes, at(c.out) + out_bytes) - std::min(at(c.in), at(c.out))
                       : in_bytes);
    mirror out(gpu_, c.out, together ? 0 : out_bytes);
    there.in = in_bytes == 0 ? nullptr : in.at(c.in);
    there.out = out_bytes == 0 ? nullptr : const_cast<std::byte*>((together ? in : out).at(c.out));
    if (++calls_ % 2 == 0) {
      gpu_.native(there);
    } else {
      gpu_.queue(there, stream_->get());
      stream_->synchronise();
    }
    in.fetch(gpu_, name(Call::kind));
    out.fetch(gpu_, name(Call::kind));
    return true;
  }

 private:
  class mirror {
   public:
    mirror(NcclTransport& gpu, const std::byte* host, std::size_t bytes)
        : host_(host), bytes_(bytes), shift_(reinterpret_cast<std::uintptr_t>(host) % 64),
          all_(2 * guard + shift_ + bytes, canary), there_(gpu, all_.size()) {
      if (bytes == 0) return;
      std::copy_n(host, bytes, all_.begin() + static_cast<std::ptrdiff_t>(guard + shift_));
      there_.put(gpu, all_);
    }
    [[nodiscard]] const std::byte* at(const std::byte* host) const {
      return there_.data() + guard + shift_ + (host - host_);
    }
    void fetch(NcclTransport& gpu, std::string_view what) {
      if (bytes_ == 0) return;
      all_ = there_.get(gpu);
      std::byte* const begin = all_.data() + guard + shift_;
      std::copy_n(begin, bytes_, const_cast<std::byte*>(host_));
      std::fill_n(begin, bytes_, canary);
      require(std::count(all_.begin(), all_.end(), canary) == static_cast<std::ptrdiff_t>(all_.size()),
              std::string(what) + " wrote outside of a buffer on the device");
    }

   private:
    static constexpr std::size_t guard = 256;
    static constexpr std::byte canary{0xc3};
    const std::byte* host_;
    std::size_t bytes_, shift_;
    std::vector<std::byte> all_;
    gpu_array<std::byte> there_;
  };

  template <class Call>
  std::pair<std::size_t, std::size_t> lengths(const Call& c) const {
    const int me = rank();
    switch (Call::kind) {
      case operation::allreduce:
      case operation::reduce:
        if constexpr (requires {
                        c.op;
                        c.count;
                      }) {
          const std::size_t n = c.count * c.op.element_bytes;
          if constexpr (Rooted<Call>) return {n, me == c.root ? n : 0};
          return {n, n};
        }
        break;
      case operation::broadcast:
        if constexpr (requires { c.bytes; }) return {me == c.root ? c.bytes : 0, c.bytes};
        break;
      case operation::alltoall:
        if constexpr (requires { c.send; }) return {c.send.total_bytes(), c.recv.total_bytes()};
        break;
      default: break;
    }
    if constexpr (requires { c.blocks; }) {
      const std::size_t own = c.blocks.bytes(me), all = c.blocks.total_bytes();
      if constexpr (Call::kind == operation::reduce_scatter) return {all, own};
      if constexpr (Call::kind == operation::allgather) return {own, all};
      if constexpr (Call::kind == operation::gather) return {own, me == c.root ? all : 0};
      if constexpr (Call::kind == operation::scatter) return {me == c.root ? all : 0, own};
    }
    return {0, 0};
  }

  NcclTransport gpu_;
  std::unique_ptr<own_stream> stream_;
  unsigned calls_ = 0;
};

/// The launcher of the shared test body.
struct on_nccl {
  using transport = through_device;
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4};
  template <class F>
  static void run(int size, const F& f, const sharing_options& /*opts*/ = {}) {
    run_with(size, {}, {}, f);
  }
  template <class F>
  static void run_with(int size, environment variables, nccl_options options, const F& f) {
    variables.emplace("HVD_STANDIN_DELAY_US", "0");
    on_hosts(size, variables, [&](ShmTransport& comm) {
      nccl_options mine = on_gpu(comm.rank());
      mine.average = options.average;
      through_device there(NcclTransport(comm, mine));
      f(there);
    });
  }
};

}  // namespace hvd::test
