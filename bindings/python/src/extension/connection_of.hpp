// connection_of.hpp: a connection over one transport.
#pragma once

#include "connection.hpp"

#include <hvd/detail/random_word.hpp>
#include <hvd/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd_python {

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
