// digits/options.hpp: the command line of train_digits.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace digits {

struct options {
  int ranks = 2;
  std::uint64_t epochs = 60;
  std::uint64_t batch = 16;
  bool batch_is_global = false;  ///< otherwise every rank takes `batch` images a step
  float learning_rate = 0.05f;
  std::uint64_t seed = 1;
  std::string data;   ///< CSV file
  std::string mnist;  ///< directory; empty to read `data`
  std::string checkpoint;
  std::string resume;
  std::string loss_file;
  bool check_bits = false;
  bool engine = false;
  bool cuda = false;
  bool help = false;
};

/// A sentence that names the option, its value and what is allowed.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws usage_error.
options parse_options(int argc, char** argv);

const char* help_text();

}  // namespace digits
