// connection_of.hpp: a connection over one transport.
#pragma once

#include "connection.hpp"

#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd_python {

/// A bitwise operation on elements of `type`, by their size.
template <template <class> class Bits>
hvd::reduction reduce_bits(hvd::dtype type, int size) {
  using enum hvd::dtype;
  switch (type) {
    case boolean:
    case int8:
    case uint8: return hvd::make_reduction<std::uint8_t>(Bits<std::uint8_t>(), size);
    case int16:
    case uint16: return hvd::make_reduction<std::uint16_t>(Bits<std::uint16_t>(), size);
    case int32:
    case uint32: return hvd::make_reduction<std::uint32_t>(Bits<std::uint32_t>(), size);
    case int64:
    case uint64: return hvd::make_reduction<std::uint64_t>(Bits<std::uint64_t>(), size);
    default:
      hvd::detail::fail(hvd::error_kind::invalid_argument,
                        {"bitwise operations of ", hvd::name(type), " are not defined; allowed: integers and bool"});
  }
}

/// The sum of bool is the logical or, and its product the logical and, as in NCCL's process group.
inline hvd::reduction reduction_of(const collective& c, int size) {
  using hvd::reduce_op;
  const bool truth = c.type == hvd::dtype::boolean;
  const auto make = [&](reduce_op op) { return hvd::make_reduction(c.type, op, size, c.factor); };
  switch (c.op) {
    case torch_op::sum: return make(truth ? reduce_op::max : reduce_op::sum);
    case torch_op::average: return make(reduce_op::average);
    case torch_op::product: return make(truth ? reduce_op::min : reduce_op::product);
    case torch_op::min: return make(reduce_op::min);
    case torch_op::max: return make(reduce_op::max);
    case torch_op::bit_and: return reduce_bits<std::bit_and>(c.type, size);
    case torch_op::bit_or: return reduce_bits<std::bit_or>(c.type, size);
    default: return reduce_bits<std::bit_xor>(c.type, size);
  }
}

/// Runs a collective on any transport. The caller has checked the buffers.
template <hvd::Transport T>
void run_on(T& comm, const collective& c) {
  const std::size_t unit = hvd::size_of(c.type);
  const auto go = [&](const auto& call) { hvd::detail::run(comm, call, hvd::automatic<>{}); };
  const auto blocks = [&](const std::vector<std::size_t>& counts) {
    return counts.empty() ? hvd::partition(comm.size(), c.count, unit) : hvd::partition(counts, unit);
  };
  using hvd::operation;
  switch (c.kind) {
    case operation::barrier: return comm.barrier();
    case operation::allreduce: return go(hvd::allreduce_call{c.in, c.out, c.count, reduction_of(c, comm.size())});
    case operation::reduce: return go(hvd::reduce_call{c.in, c.out, c.count, reduction_of(c, comm.size()), c.root});
    case operation::reduce_scatter:
      return go(hvd::reduce_scatter_call{c.in, c.out, blocks(c.send), reduction_of(c, comm.size())});
    case operation::allgather: return go(hvd::allgather_call{c.in, c.out, blocks(c.recv)});
    case operation::broadcast: return go(hvd::broadcast_call{c.in, c.out, c.count * unit, c.root});
    case operation::alltoall: return go(hvd::alltoall_call{c.in, c.out, blocks(c.send), blocks(c.recv)});
    case operation::gather: return go(hvd::gather_call{c.in, c.out, blocks(c.recv), c.root});
    case operation::scatter: return go(hvd::scatter_call{c.in, c.out, blocks(c.send), c.root});
    default:
      hvd::detail::fail(hvd::error_kind::invalid_argument, {hvd::name(c.kind), " is not a collective of a group"});
  }
}

/// `Messages` has the functions of hvd::detail::tagged_messages; null if there is only one rank.
template <hvd::Transport T, class Messages>
class connection_of final : public connection {
 public:
  connection_of(T comm, std::unique_ptr<Messages> messages) : comm_(std::move(comm)), messages_(std::move(messages)) {}

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  std::vector<int> hosts() const override {
    if constexpr (requires { comm_.host_of(); }) {
      return comm_.host_of();
    } else {
      return std::vector<int>(static_cast<std::size_t>(size()));
    }
  }
  std::string_view timeline_name() const override { return hvd::timeline_name_of<T>; }
  void abort() noexcept override {
    if constexpr (requires { comm_.abort(); }) comm_.abort();
    if (messages_) messages_->abort();
  }
  void set_interruption(const hvd::interruption& by) override {
    if constexpr (requires { comm_.set_interruption(by); }) comm_.set_interruption(by);
  }

  hvd::detail::job_clock agree_on_clock() override {
    if constexpr (hvd::PointToPoint<T>) {
      return hvd::detail::agree_on_clock(comm_, hvd::detail::random_word());
    } else {
      return {};
    }
  }
  void run(const collective& c, hvd::failure_policy::seconds timeout) override {
    if constexpr (requires { comm_.set_timeout(timeout); }) comm_.set_timeout(timeout);
    run_on(comm_, c);
  }
  std::shared_ptr<std::byte> alloc_shared(std::size_t bytes) override {
    return hold(comm_.template alloc_shared<std::byte>(bytes));
  }
  std::shared_ptr<std::byte> map_shared(int fd, std::size_t bytes) override {
    if constexpr (requires { comm_.template map_shared<std::byte>(fd, bytes); }) {
      return hold(comm_.template map_shared<std::byte>(fd, bytes));
    } else {
      return nullptr;
    }
  }

  void post(std::shared_ptr<hvd::detail::tagged_message> message) override { messages_->post(std::move(message)); }
  bool idle() const override { return !messages_ || messages_->idle(); }
  bool progress() override { return messages_->progress(); }
  void wait(const std::atomic<bool>& woken) override {
    messages_->wait([&] { return woken.load(std::memory_order_acquire); });
  }
  void wake() noexcept override { messages_->wake(); }
  void fail_all(const hvd::error& why) override {
    if (messages_) messages_->fail_all(why);
  }

 private:
  template <class Array>
  static std::shared_ptr<std::byte> hold(Array made) {
    if (made.empty()) return nullptr;
    const auto kept = std::make_shared<Array>(std::move(made));
    return {kept, kept->data()};
  }

  T comm_;
  std::unique_ptr<Messages> messages_;
};

}  // namespace hvd_python
