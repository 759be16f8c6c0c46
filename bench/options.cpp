// bench/options.cpp: nccl-tests' flags and our own, checked before anything starts.
#include <bench/options.hpp>

#include <bench/fused.hpp>
#include <bench/hvd_backend.hpp>
#include <bench/inputs.hpp>
#include <bench/replay_options.hpp>
#include <bench/sizes.hpp>

#include <hvd/topology.hpp>
#include <hvd/version.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iostream>
#include <system_error>

namespace hvd::bench {
namespace {

template <class Names>
std::string join(const Names& names) {
  std::string all;
  for (const auto& n : names) all += (all.empty() ? "" : ", ") + std::string(n);
  return all;
}

std::size_t size_option(const char* flag, const std::string& text) {
  if (const auto size = parse_size(text)) return *size;
  throw usage_error(std::string(flag) + " " + text +
                    " is no size; write a whole number of bytes, or one with K, M, G or T (powers of 1024)");
}

template <class T>
bool is_number(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [at, code] = std::from_chars(text.data(), end, value);
  return code == std::errc{} && at == end;
}

double seconds_option(const char* flag, const std::string& text) {
  constexpr int day = 86'400;
  double value = 0;
  if (is_number(text, value) && value > 0 && value <= day) return value;
  throw usage_error(std::string(flag) + " " + text + " is no time; allowed: more than 0 and at most " +
                    std::to_string(day) + " seconds");
}

template <class E, std::size_t N>
E choice_option(const char* flag, const std::string_view (&names)[N], const std::string& text) {
  if (const auto value = find<E>(names, text)) return *value;
  throw usage_error(std::string(flag) + " " + text + " is not known; allowed: " + join(names));
}

/// nccl-tests' programs and NCCL's spelling count too.
collective collective_option(std::string text) {
  if (text.ends_with("_perf")) text.resize(text.size() - 5);
  std::replace(text.begin(), text.end(), '-', '_');
  constexpr std::pair<std::string_view, collective> others[] = {{"all_reduce", collective::allreduce},
                                                                {"all_gather", collective::allgather},
                                                                {"reducescatter", collective::reduce_scatter},
                                                                {"all_to_all", collective::alltoall},
                                                                {"bcast", collective::broadcast},
                                                                {"sendrecv", collective::send_recv}};
  for (const auto& [spelling, kind] : others) {
    if (text == spelling) return kind;
  }
  if (const auto kind = find<collective>(collective_names, text)) return *kind;
  throw usage_error("there is no collective \"" + text + "\"; allowed: " + join(collective_names));
}

std::vector<dtype> type_option(const std::string& text) {
  constexpr std::pair<std::string_view, dtype> others[] = {
      {"half", dtype::float16},  {"fp16", dtype::float16},   {"float", dtype::float32},
      {"fp32", dtype::float32},  {"double", dtype::float64}, {"fp64", dtype::float64},
      {"bf16", dtype::bfloat16}, {"char", dtype::int8},      {"boolean", dtype::boolean}};
  std::vector<dtype> all;
  std::string names;
  for (int t = 0; t != static_cast<int>(dtype::user); ++t) {
    const auto type = static_cast<dtype>(t);
    if (hvd::name(type) == text || type_name(type) == text) return {type};
    if (type != dtype::boolean && type != dtype::complex64 && type != dtype::complex128) all.push_back(type);
    names += std::string(type_name(type)) + ", ";
  }
  for (const auto& [spelling, type] : others) {
    if (text == spelling) return {type};
  }
  if (text == "all") return all;
  throw usage_error("-d " + text + " is no type; allowed: " + names + "all");
}

std::vector<redop> op_option(const std::string& text) {
  if (text == "all") return {redop::sum, redop::prod, redop::min, redop::max, redop::avg};
  if (text == "product") return {redop::prod};
  if (text == "average") return {redop::avg};
  if (const auto op = find<redop>(redop_names, text)) return {*op};
  throw usage_error("-o " + text + " is no reduction; allowed: " + join(redop_names) + ", all");
}

/// A flag with a whole number, read as text so that one sentence says what is wrong with it.
struct whole_flag {
  const char *names, *flag;
  unsigned* value;
  unsigned least, most;
  const char* meaning;
  std::string text{};
  const CLI::Option* option = nullptr;

  [[nodiscard]] bool given() const { return option->count() != 0; }
  void read() const {
    unsigned number = 0;
    if (!given()) return;
    if (!is_number(text, number) || number < least || number > most) {
      throw usage_error(std::string(flag) + " " + text + " is not allowed; allowed: whole numbers from " +
                        std::to_string(least) + " to " + std::to_string(most));
    }
    *value = number;
  }
};

/// What is on the command line and belongs to nothing: an unknown flag with its value, or a word too many.
std::string unknown_words(const std::vector<std::string>& extras, int argc, char** argv, const std::string& kind) {
  const auto extra = [&](const char* word) { return std::find(extras.begin(), extras.end(), word) != extras.end(); };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with('-') || !extra(argv[i])) continue;
    const bool has_value = i + 1 < argc && argv[i + 1][0] != '-' && word.find('=') == std::string::npos;
    return word + (has_value ? std::string(" ") + argv[i + 1] : "") + " is not known: there is no flag " +
           word.substr(0, word.find('=')) + "; hvd-bench --help lists the allowed ones";
  }
  return (extras.empty() ? "a word" : extras.front()) + " is too much after " + kind +
         "; write hvd-bench COLLECTIVE and then flags, as hvd-bench --help lists them";
}

/// Flags of nccl-tests that mean nothing without a GPU: accepted at the value that changes nothing.
struct neutral_flag {
  const char *names, *flag;
  std::string neutral;
  const char* meaning;
};

/// `sized`: -t or -g is given. 1 times 1 means one rank where neither -n nor a launcher says how many there are.
void check(options& o, bool ranks_given, bool sized, int threads, int gpus, int launched) {
  const int each = threads * gpus;
  if (each > 1) {
    if (ranks_given && o.ranks != each) {
      throw usage_error("-n is the number of ranks here (" + std::to_string(o.ranks) + "), which disagrees with -t " +
                        std::to_string(threads) + " times -g " + std::to_string(gpus) +
                        "; the number of iterations is --iters");
    }
    o.ranks = each;
  } else if (!ranks_given) {
    o.ranks = sized || o.transport == "self" ? 1 : std::max(2, std::min(host().cpus, 8));
  }
  if (launched != 0) {
    if ((ranks_given || each > 1) && o.ranks != launched) {
      throw usage_error("the launcher has started " + std::to_string(launched) +
                        " ranks, and the command line asks for " + std::to_string(o.ranks) +
                        "; leave out -n, or let hvd-bench start its own ranks");
    }
    o.ranks = launched;
  }
  const int most = 256;
  if (o.ranks > most) {  // of -t times -g, or of a launcher
    throw usage_error(std::to_string(o.ranks) + " ranks are more than hvd-bench measures; allowed: 1 to " +
                      std::to_string(most));
  }
  if (o.transport == "self" && o.ranks != 1) {
    throw usage_error("--transport self has one rank, not " + std::to_string(o.ranks) + "; leave out -n or take shm");
  }
  if (o.step_factor < 2 && o.step_bytes == 0 && o.min_bytes != o.max_bytes) {
    throw usage_error("-i 0 never comes from -b to -e; give a step in bytes, or a factor (-f)");
  }
  constexpr std::size_t most_rows = 10000;
  if (o.step_factor < 2 && o.step_bytes != 0 && (o.max_bytes - o.min_bytes) / o.step_bytes >= most_rows) {
    throw usage_error("-i " + size_text(o.step_bytes) + " from -b " + size_text(o.min_bytes) + " to -e " +
                      size_text(o.max_bytes) + " makes more than " + std::to_string(most_rows) +
                      " sizes; allowed: a larger step (-i), or a factor (-f)");
  }
  if (o.step_factor > 1 && o.min_bytes == 0 && o.max_bytes != 0) {
    throw usage_error("-b 0 times any factor stays 0; begin with at least one byte, or take steps (-i)");
  }
  if (const std::string why = check_algorithm(o.algorithm); !why.empty()) throw usage_error(why);
  if (o.algorithm.size() >= sizeof(job{}.algorithm)) throw usage_error("--algorithm " + o.algorithm + " is too long");
  if (!o.in_place && !o.out_of_place) throw usage_error("--in-place-only and --out-of-place-only leave nothing to do");
  if (reduces(o.kind) && o.types.size() == 1 && o.ops.size() == 1 && !defined(o.types[0], o.ops[0])) {
    throw usage_error(std::string(name(o.ops[0])) + " is not defined for " + std::string(type_name(o.types[0])) +
                      "; see --list");
  }
  if (o.fusion_bytes < 1024) throw usage_error("--fusion-bytes must be at least 1K");
  if (!reduces(o.kind)) o.ops = {redop::sum};
  if (o.rounds == 0) o.rounds = o.peers.empty() && !o.limit && o.kind != collective::engine ? 1 : 3;
  if (o.kind == collective::engine) check_replay(o);
}

}  // namespace

std::optional<options> parse_options(int argc, char** argv, int launched) {
  options o;
  for (int i = 0; i != argc; ++i) o.command += (i == 0 ? "" : " ") + std::string(argv[i]);
  CLI::App app{"Measures collectives, as nccl-tests does: time, bandwidth and correctness for each size.", "hvd-bench"};
  app.set_help_flag("-h,--help", "Print this and end");
  app.set_version_flag("--version", std::string("hvd-bench ") + std::string(version));
  app.get_formatter()->column_width(34);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // as getopt

  std::string kind, begin, end, step, type = "float", op = "sum", root = "0", memory, state, transport = "shm", fusion,
                                      model_text = "resnet50", registration, limit, seconds;
  unsigned ranks = 0, factor = 1, threads = 1, gpus = 1, average = 3, warmup = 0, iterations = 0;
  bool streaming = false, isolated = false, in_only = false, out_only = false, no_pin = false;
  unsigned ignored = 0, stamps = 0, spread = 0;
  std::vector<std::string> peers;
  ReplayFlags passes;

  app.add_option("collective", kind, join(collective_names));
  constexpr unsigned million = 1'000'000;
  enum { ranks_, threads_, gpus_, warmup_, iterations_ };
  std::vector<whole_flag> whole = {
      {"-n,--ranks", "-n", &ranks, 1, 256,
       "Ranks to start (default: -t times -g if given, else one for each usable CPU, 2 to 8)"},
      {"-t,--nthreads", "-t", &threads, 1, 256,
       "As in nccl-tests: -t times -g ranks; more than 1 takes --transport thread"},
      {"-g,--ngpus", "-g", &gpus, 1, 256, "See -t"},
      {"-w,--warmup_iters", "-w", &warmup, 0, million, "Calls before timing (default: by size; 5 with --iters)"},
      {"--iters", "--iters", &iterations, 1, million, "Calls that are timed (default: by size)"},
      {"-f,--stepfactor", "-f", &factor, 1, million, "Factor between sizes, instead of a step"},
      {"-c,--check", "-c", &o.checks, 0, million, "Checks of each result, 0 for none (default: 1)"},
      {"-N,--run_cycles", "-N", &o.cycles, 1, million, "Run the whole table this often (default: 1)"},
      {"-a,--average", "-a", &average, 0, 3, "Over ranks: 0 rank 0, 1 mean, 2 min, 3 max (default: 3)"},
      {"-S,--report_timestamps", "-S", &stamps, 0, 1, "1: the time of day at the end of each row"},
      {"-I,--report_iterations", "-I", &spread, 0, 1, "1: minimum, maximum and variation over iterations"},
      {"-u,--unalign", "-u", &o.unalign, 0, 4096, "Elements by which buffers are off their alignment"},
      {"-p,--parallel_init", "-p", &ignored, 0, 1, "Accepted: ranks always start in parallel"},
      {"-C,--report_cputime", "-C", &ignored, 0, 1, "Accepted: ranks are processes on the CPU"},
      {"--rounds", "--rounds", &o.rounds, 1, million,
       "Turns of all libraries at each size (default: 1 alone, 3 with others)"}};
  for (whole_flag& f : whole) f.option = app.add_option(f.names, f.text, f.meaning)->type_name("N");
  app.add_option("-b,--minbytes", begin, "Smallest size, as 8, 64K, 1M (default: 32M)");
  app.add_option("-e,--maxbytes", end, "Largest size (default: 32M)");
  app.add_option("-i,--stepbytes", step, "Step between sizes (default: 1M)");
  app.add_option("-o,--op", op, "sum, prod, min, max, avg, all (default: sum)");
  app.add_option("-d,--datatype", type, "Element type, or all (default: float); see --list");
  app.add_option("-r,--root", root, "Root, or all (default: 0)");
  app.add_option("-T,--timeout,--limit-seconds", limit,
                 "End a library that takes longer for a cell (default: 80 times --seconds-per-cell, at least 20)")
      ->type_name("SECONDS");
  app.add_option("--seconds-per-cell", seconds,
                 "Measuring time for each number (default: 0.25); more of it also allows more calls")
      ->type_name("SECONDS");
  app.add_option("-J,--output_file,--json", o.json, "Write the results to this file, as JSON");
  app.add_option("-R,--local_register", registration, "0: --buffers private; 2: --buffers shared");
  std::vector<neutral_flag> neutral = {{"-m,--agg_iters", "-m", "1", "calls are not aggregated"},
                                       {"-z,--blocking", "-z", "0", "calls return when they are done"},
                                       {"-y,--stream_null", "-y", "0", "there are no CUDA streams"},
                                       {"-G,--cudagraph", "-G", "0", "there are no CUDA graphs"},
                                       {"-x,--cta_policy", "-x", "0", "there are no CTAs"},
                                       {"-D,--device_implementation", "-D", "0", "there is no device code"},
                                       {"-V,--device_cta_count", "-V", "0", "there are no CTAs"},
                                       {"-M,--memory_report", "-M", "0", "there is no device memory"},
                                       {"-K,--skip", "-K", "0", "nothing is skipped"}};
  std::vector<std::string> given(neutral.size());
  for (std::size_t i = 0; i != neutral.size(); ++i) {
    app.add_option(neutral[i].names, given[i], "Accepted as " + neutral[i].neutral)->group("");
  }
  app.add_option("--transport", transport, join(transport_names) + " (default: shm)");
  app.add_option("--algorithm", o.algorithm, "NAME or NAME:tunable=value,... (default: automatic); see --list");
  app.add_option("--buffers", memory, "private or shared (default: private; fused, engine: shared)");
  app.add_option("--mode", state, "dirty, clean or rotating (default: dirty): what a call finds in its buffers");
  app.add_flag("--isolated", isolated, "A barrier before each call (default)");
  app.add_flag("--streaming", streaming, "Call after call");
  app.add_flag("--in-place-only", in_only, "Leave out-of-place out");
  app.add_flag("--out-of-place-only", out_only, "Leave in-place out");
  app.add_option("--peer", peers, "NAME or NAME=COMMAND: also measure this library (repeat for more)")
      ->take_all()
      ->allow_extra_args(false);
  app.add_flag("--limit", o.limit, "Also measure a loop that only moves the bytes that must move");
  app.add_option("--model", model_text, "For fused and engine: resnet50 (default) or transformer124m (gpt2)");
  app.add_option("--fusion-bytes", fusion, "For fused and engine: size of the fusion buffer (default: 4M)");
  passes.add(app);
  app.add_flag("--no-pin", no_pin, "Leave ranks on whatever CPU they are");
  app.add_flag("--explain", o.explain,
               "Print what automatic chooses on -n ranks, by size, from what messages cost; and end");
  app.add_flag("--list", o.list, "Print collectives, types, reductions, algorithms, transports and peers, and end");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    throw usage_error(unknown_words(app.remaining(), argc, argv, kind));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {
      app.exit(e, std::cout, std::cerr);
      return std::nullopt;
    }
    throw usage_error(std::string(e.what()) + "; hvd-bench --help lists what there is");
  }

  if (o.list) return o;
  if (o.explain) {
    for (const whole_flag& f : whole) f.read();
    o.ranks = ranks != 0 ? static_cast<int>(ranks) : 2;
    return o;
  }
  if (kind.empty()) throw usage_error("which collective? hvd-bench COLLECTIVE, one of: " + join(collective_names));
  o.kind = collective_option(kind);
  for (std::size_t i = 0; i != neutral.size(); ++i) {
    if (!given[i].empty() && given[i] != neutral[i].neutral) {
      throw usage_error(std::string(neutral[i].flag) + " " + given[i] + " has no meaning here: " + neutral[i].meaning +
                        "; leave it out or give " + neutral[i].neutral);
    }
  }
  if (!begin.empty()) o.min_bytes = size_option("-b", begin);
  if (!end.empty()) o.max_bytes = size_option("-e", end);
  if (!step.empty()) o.step_bytes = size_option("-i", step);
  if (!fusion.empty()) o.fusion_bytes = size_option("--fusion-bytes", fusion);
  if (o.min_bytes > o.max_bytes) {
    throw usage_error("-b " + size_text(o.min_bytes) + (begin.empty() ? " (its default)" : "") + " is beyond -e " +
                      size_text(o.max_bytes) + (end.empty() ? " (its default)" : "") +
                      "; allowed: a smallest size (-b) up to the largest (-e)");
  }
  for (const whole_flag& f : whole) f.read();
  o.step_factor = factor;
  if (whole[iterations_].given()) {
    o.iterations = iterations;
    o.warmup = 5;
  }
  if (whole[warmup_].given()) o.warmup = warmup;
  if (!seconds.empty()) o.seconds = seconds_option("--seconds-per-cell", seconds);
  o.limit_seconds = limit.empty() ? std::max(o.limit_seconds, 80 * o.seconds) : seconds_option("-T", limit);
  if (!limit.empty() && !seconds.empty() && o.limit_seconds < o.seconds) {
    throw usage_error("-T " + limit + " would end a library before --seconds-per-cell " + seconds +
                      " is over; allowed: a limit (-T) of at least that time");
  }
  o.types = type_option(type);
  o.ops = op_option(op);
  o.over_ranks = static_cast<averaging>(average);
  o.timestamps = stamps != 0;
  o.spread = spread != 0;
  if (model_text == "gpt2") model_text = name(model::transformer124m);
  o.parameters = choice_option<model>("--model", model_names, model_text);
  passes.read(o.passes);
  const bool gradients = o.kind == collective::fused || o.kind == collective::engine;
  if (gradients) o.memory = buffers::shared;  // a fusion buffer is the library's own to place
  if (!memory.empty()) o.memory = choice_option<buffers>("--buffers", buffers_names, memory);
  if (!registration.empty()) {
    if (registration != "0" && registration != "2") {
      throw usage_error("-R " + registration +
                        " has no meaning here; allowed: 0 (private buffers), 2 (shared buffers)");
    }
    const buffers wanted = registration == "2" ? buffers::shared : buffers::private_;
    if (!memory.empty() && wanted != o.memory) {
      throw usage_error("-R " + registration + " disagrees with --buffers " + memory);
    }
    o.memory = wanted;
  }
  if (!state.empty()) o.state = choice_option<mode>("--mode", mode_names, state);
  if (streaming && isolated) throw usage_error("--isolated and --streaming exclude each other");
  if (streaming) o.pace = cadence::streaming;
  if (in_only && out_only) throw usage_error("--in-place-only and --out-of-place-only leave nothing to measure");
  o.out_of_place = !in_only;
  o.in_place = !out_only;
  if (in_only && !works_in_place(o.kind)) throw usage_error(std::string(name(o.kind)) + " does not work in place");
  o.pin = !no_pin;
  if (app.count("--transport") == 0 && threads > 1) transport = "thread";
  if (std::find(std::begin(transport_names), std::end(transport_names), transport) == std::end(transport_names)) {
    throw usage_error("--transport " + transport + " is not known; allowed: " + join(transport_names));
  }
  o.transport = transport;
  o.ranks = static_cast<int>(ranks);
  for (const std::string& p : peers) {
    const std::size_t equals = p.find('=');
    peer_option peer{p.substr(0, equals), equals == std::string::npos ? "" : p.substr(equals + 1)};
    if (peer.name.empty() || (equals != std::string::npos && peer.command.empty())) {
      throw usage_error("--peer " + p + " has no " + (peer.name.empty() ? "name" : "command") +
                        "; write --peer NAME or --peer NAME=COMMAND");
    }
    const bool taken = peer.name == "hvd" || peer.name == "limit" ||
                       std::any_of(o.peers.begin(), o.peers.end(), [&](const auto& q) { return q.name == peer.name; });
    if (taken) throw usage_error("there are two libraries " + peer.name + "; give --peer another name before the =");
    o.peers.push_back(std::move(peer));
  }
  if (const char* const least = std::getenv("NCCL_TESTS_MIN_BW")) {
    char* rest = nullptr;
    o.min_bandwidth = std::strtod(least, &rest);
    if (rest == least || *rest != '\0' || o.min_bandwidth < 0) {
      throw usage_error(std::string("NCCL_TESTS_MIN_BW is \"") + least + "\"; expected a bandwidth in GB/s");
    }
  }
  const bool sized = whole[threads_].given() || whole[gpus_].given();
  check(o, whole[ranks_].given(), sized, static_cast<int>(threads), static_cast<int>(gpus), launched);
  if (root == "all") {
    o.roots.clear();
    for (int r = 0; r != (has_root(o.kind) ? o.ranks : 1); ++r) o.roots.push_back(r);
  } else {
    char* rest = nullptr;
    const long r = std::strtol(root.c_str(), &rest, 10);
    if (root.empty() || *rest != '\0' || r < 0 || r >= o.ranks) {
      throw usage_error("-r " + root + " is no rank; allowed: 0 to " + std::to_string(o.ranks - 1) + ", all");
    }
    o.roots = {has_root(o.kind) ? static_cast<int>(r) : 0};
  }
  return o;
}

unsigned most_iterations(const options& o) { return static_cast<unsigned>(std::clamp(o.seconds * 8000, 2000.0, 1e6)); }

std::vector<std::size_t> sizes_of(const options& o) {
  if (o.kind == collective::barrier) return {0};
  if (o.kind == collective::fused || o.kind == collective::engine)
    return {parameters_of(o.parameters) * hvd::size_of(o.types[0])};
  std::vector<std::size_t> sizes;
  for (std::size_t s = o.min_bytes; s <= o.max_bytes;) {
    sizes.push_back(s);
    const std::size_t next = o.step_factor > 1 ? s * o.step_factor : s + o.step_bytes;
    if (next <= s || (o.step_factor > 1 && next / o.step_factor != s)) break;  // beyond what a number can hold
    s = next;
  }
  return sizes;
}

}  // namespace hvd::bench
