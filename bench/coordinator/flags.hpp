// bench/coordinator/flags.hpp: flags whose values are read after the command line as a whole is known to be right.
#pragma once

#include <bench/job.hpp>

#include <CLI/CLI.hpp>

#include <functional>
#include <list>
#include <string>

namespace hvd::bench {

/// A flag is called by the first of its names. Values are read as text, so that one sentence explains what is wrong
/// with them.
class Flags {
 public:
  using reader = std::function<void(const std::string& flag, const std::string& text)>;

  explicit Flags(CLI::App& app) : app_(app) {}

  CLI::Option* add(const std::string& names, const std::string& meaning, reader read = {});
  /// A whole number from `least` to `most`.
  void whole(const std::string& names, unsigned& value, unsigned least, unsigned most, const std::string& meaning);
  /// A flag of nccl-tests that means nothing without a GPU: accepted at the value that changes nothing.
  void neutral(const std::string& names, const std::string& only, const std::string& why);

  /// Reads those that are given, in the order in which they were added. Errors: usage_error.
  void read() const;
  [[nodiscard]] bool given(const std::string& flag) const { return find(flag).option->count() != 0; }
  [[nodiscard]] const std::string& text(const std::string& flag) const { return find(flag).text; }

 private:
  struct one {
    std::string flag, text;
    reader read;
    const CLI::Option* option = nullptr;
  };
  [[nodiscard]] const one& find(const std::string& flag) const;

  CLI::App& app_;
  std::list<one> all_;  // options know where their texts are
};

/// Those of hvd-bench engine.
void add_replay_flags(CLI::App& app, Flags& flags, replay& to);

}  // namespace hvd::bench
