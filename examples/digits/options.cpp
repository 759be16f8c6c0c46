// digits/options.cpp: reads the command line with getopt_long, and checks every value before a process is
// started.
#include "options.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>

#include <getopt.h>

// Where the data lies; a build system can set it, so that the program runs from any directory.
#ifndef DIGITS_CSV
#define DIGITS_CSV "examples/data/digits.csv"
#endif

namespace digits {
namespace {

// The results of getopt_long: letters for options that have one, other numbers for the rest.
enum key : int {
  ranks = 'n',
  help = 'h',
  epochs = 256,
  batch,
  global_batch,
  lr,
  seed,
  data,
  mnist,
  checkpoint,
  resume,
  loss_file,
  check_bits,
  engine,
  device,
};

constexpr std::array long_options = {
    option{"ranks", required_argument, nullptr, key::ranks},
    option{"epochs", required_argument, nullptr, key::epochs},
    option{"batch", required_argument, nullptr, key::batch},
    option{"global-batch", required_argument, nullptr, key::global_batch},
    option{"lr", required_argument, nullptr, key::lr},
    option{"seed", required_argument, nullptr, key::seed},
    option{"data", required_argument, nullptr, key::data},
    option{"mnist", required_argument, nullptr, key::mnist},
    option{"checkpoint", required_argument, nullptr, key::checkpoint},
    option{"resume", required_argument, nullptr, key::resume},
    option{"loss-file", required_argument, nullptr, key::loss_file},
    option{"check-bits", no_argument, nullptr, key::check_bits},
    option{"engine", no_argument, nullptr, key::engine},
    option{"device", required_argument, nullptr, key::device},
    option{"help", no_argument, nullptr, key::help},
    option{nullptr, 0, nullptr, 0},
};

std::string name_of(int answer) {
  if (answer == key::ranks) return "-n";
  for (const option& each : long_options) {
    if (each.name != nullptr && each.val == answer) return std::string("--") + each.name;
  }
  return {};
}

// One option as it was given.
struct argument {
  std::string option;
  std::string_view value;

  [[noreturn]] void refuse(const std::string& allowed) const {
    throw usage_error(option + ": '" + std::string(value) + "' is not " + allowed);
  }

  template <class Number>
  [[nodiscard]] std::optional<Number> number() const {
    Number result{};
    const auto [stop, problem] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (problem != std::errc{} || stop != value.data() + value.size()) return std::nullopt;
    return result;
  }

  [[nodiscard]] std::uint64_t whole(std::uint64_t least, std::uint64_t most) const {
    const auto result = number<std::uint64_t>();
    if (!result || *result < least || *result > most) {
      refuse("a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return *result;
  }

  [[nodiscard]] float positive(int most) const {
    const auto result = number<float>();
    if (!result || !(*result > 0) || *result > static_cast<float>(most)) {
      refuse("a number above 0 and at most " + std::to_string(most));
    }
    return *result;
  }

  /// Whether it is the second of two words.
  [[nodiscard]] bool one_of(std::string_view first, std::string_view second) const {
    if (value != first && value != second) refuse(std::string(first) + " or " + std::string(second));
    return value == second;
  }

  [[nodiscard]] std::string path() const {
    if (value.empty()) refuse("the name of a file or directory");
    return std::string(value);
  }
};

[[noreturn]] void refuse_syntax(int answer, const char* last) {
  if (answer == ':') throw usage_error(name_of(optopt) + ": a value must follow");
  if (const std::string name = name_of(optopt); !name.empty()) throw usage_error(name + ": no value may follow");
  const std::string given = optopt == 0 ? last : std::string("-") + static_cast<char>(optopt);
  throw usage_error("there is no option '" + given + "', or it is short for several; --help lists all");
}

// Options that exclude each other.
void check_together(const options& wanted, bool ranks_given, bool batch_given, bool data_given) {
  if (wanted.batch_is_global && batch_given) {
    throw usage_error("--batch (images a rank) and --global-batch (images of all ranks) exclude each other");
  }
  if (wanted.engine && wanted.cuda) throw usage_error("--engine and --device cuda exclude each other");
  if (!wanted.mnist.empty() && data_given) throw usage_error("--data and --mnist exclude each other");
  if (ranks_given && std::getenv("HOROVOD_RANK") != nullptr) {
    throw usage_error("-n: HOROVOD_RANK is set, so the number of ranks is given by HOROVOD_SIZE");
  }
}

}  // namespace

options parse_options(int argc, char** argv) {
  options wanted;
  wanted.data = DIGITS_CSV;
  bool ranks_given = false, batch_given = false, data_given = false;
  opterr = 0;  // the sentences are ours
  for (int answer = 0; (answer = getopt_long(argc, argv, ":n:h", long_options.data(), nullptr)) != -1;) {
    const argument given{name_of(answer), optarg != nullptr ? optarg : ""};
    switch (answer) {
      case key::ranks:
        wanted.ranks = static_cast<int>(given.whole(1, 64));
        ranks_given = true;
        break;
      case key::epochs: wanted.epochs = given.whole(1, 1'000'000); break;
      case key::batch:
        wanted.batch = given.whole(1, 1'000'000);
        batch_given = true;
        break;
      case key::global_batch:
        wanted.batch = given.whole(1, 1'000'000);
        wanted.batch_is_global = true;
        break;
      case key::lr: wanted.learning_rate = given.positive(10); break;
      case key::seed: wanted.seed = given.whole(0, ~std::uint64_t{0} >> 1); break;
      case key::data:
        wanted.data = given.path();
        data_given = true;
        break;
      case key::mnist: wanted.mnist = given.path(); break;
      case key::checkpoint: wanted.checkpoint = given.path(); break;
      case key::resume: wanted.resume = given.path(); break;
      case key::loss_file: wanted.loss_file = given.path(); break;
      case key::check_bits: wanted.check_bits = true; break;
      case key::engine: wanted.engine = true; break;
      case key::device: wanted.cuda = given.one_of("cpu", "cuda"); break;
      case key::help: wanted.help = true; return wanted;
      default: refuse_syntax(answer, argv[optind - 1]);
    }
  }
  if (optind < argc) throw usage_error("'" + std::string(argv[optind]) + "' is not an option; --help lists all");
  check_together(wanted, ranks_given, batch_given, data_given);
  return wanted;
}

const char* help_text() {
  return R"(Usage: train_digits [option]...

Trains a multi-layer perceptron on handwritten digits, data-parallel on several processes of this host.

  -n, --ranks N         processes to start, 1 to 64 (default 2). If HOROVOD_RANK is set, none is started: this
                        process is then one rank of a job that something else starts.
      --epochs N        passes over the training images (default 60)
      --batch N         images that each rank takes in a step (default 16); the learning rate is multiplied by
                        the number of ranks, because a step sees so many times the images
      --global-batch N  images that all ranks together take in a step; the learning rate is used as given, and
                        the loss does not depend on the number of ranks
      --lr X            learning rate (default 0.05)
      --seed N          of the first weights and the order of the images (default 1); a resumed run has its own
      --data FILE       digits in the format of examples/data/README.md (default ")" DIGITS_CSV R"(")
      --mnist DIR       read MNIST instead: {train,t10k}-{images-idx3,labels-idx1}-ubyte, unpacked
      --checkpoint FILE written by rank 0 after every epoch
      --resume FILE     go on from a checkpoint, up to --epochs in all
      --loss-file FILE  write one line an epoch: its number and its loss
      --engine          sum the gradients of a layer while those of the one before are computed;
                        HOROVOD_TIMELINE=FILE shows when, in a browser
      --device cpu|cuda where the gradients are summed (default cpu): cuda copies them to a GPU of each rank, and
                        needs NCCL; the network is computed on the host
      --check-bits      after every step, check that all ranks hold the same bits
  -h, --help

Exit code: 0 done, 1 failed, 2 bad options, 128 + signal when interrupted.
)";
}

}  // namespace digits
