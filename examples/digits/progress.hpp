// digits/progress.hpp: what a run shows: a line for every epoch, and a bar while stdout is a terminal.
#pragma once

#include <chrono>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

namespace digits {

/// On one rank only; silent on the others. Everything is flushed at once, so that a signal takes nothing
/// along.
class progress_display {
 public:
  progress_display(bool shown, std::uint64_t steps)
      : shown_(shown), bar_(shown && ::isatty(STDOUT_FILENO) == 1), steps_(steps) {}
  progress_display(const progress_display&) = delete;
  progress_display& operator=(const progress_display&) = delete;
  ~progress_display() {
    // A run that ends early, by an exception, leaves a clean line for it.
    if (done_ == steps_) return;
    erase_bar();
    std::fflush(stdout);
  }

  /// A line that stays, as printf makes it; the bar goes on below it.
  [[gnu::format(printf, 2, 3)]] void line(const char* format, ...) const {
    if (!shown_) return;
    erase_bar();
    std::va_list values;
    va_start(values, format);
    std::vprintf(format, values);
    va_end(values);
    std::putchar('\n');
    draw_bar();
    std::fflush(stdout);
  }

  /// One step is done.
  void step() {
    ++done_;
    if (!bar_) return;
    // 20 times a second looks smooth; at every step the terminal would take longer than a small model.
    const auto now = std::chrono::steady_clock::now();
    if (now - drawn_ < std::chrono::milliseconds(50)) return;
    drawn_ = now;
    draw_bar();
    std::fflush(stdout);
  }

 private:
  void draw_bar() const {
    if (!bar_ || done_ == steps_) return;
    constexpr std::uint64_t width = 40;
    const auto filled = static_cast<std::size_t>(width * done_ / steps_);
    const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
    std::printf("\r[%s] %3d %%", bar.c_str(), static_cast<int>(100 * done_ / steps_));
  }

  void erase_bar() const {
    if (bar_) std::fputs("\r\033[K", stdout);
  }

  bool shown_;
  bool bar_;
  std::uint64_t steps_;
  std::uint64_t done_ = 0;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace digits
