// bench/coordinator/engine.cpp: the order of schedules and libraries, and the conclusions.
#include <bench/coordinator/engine.hpp>

#include <bench/cases/gradients.hpp>
#include <bench/cases/inputs.hpp>
#include <bench/coordinator/libraries.hpp>
#include <bench/coordinator/signals.hpp>
#include <bench/report/engine_report.hpp>
#include <bench/report/result_file.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace hvd::bench {
namespace {

constexpr unsigned default_steps = 30, default_warmup = 2, latency_calls = 2000, latency_warmup = 200;

/// A folder for timelines, which goes with it.
class scratch {
 public:
  scratch() {
    path_ = (std::filesystem::temp_directory_path() / "hvd-bench-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error("cannot make a folder for timelines, " + path_ + ": " + std::strerror(errno));
    }
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  [[nodiscard]] std::string file() const { return path_ + "/timeline.json"; }

 private:
  std::string path_;
};

/// All schedules of all libraries, in turns.
class engine_run {
 public:
  engine_run(const options& o, std::vector<std::unique_ptr<Library>>& libraries)
      : o_(o), libraries_(libraries), all_(gradients_in(o.parameters)), job_(job_of(o)) {
    result.gradients = all_.size();
    result.parameters = parameters_of(o.parameters);
    job_.count = result.parameters;
    for (std::size_t l = 0; l != libraries.size(); ++l) {
      if (l == 0) result.cells.push_back({l, schedule::engine, false});
      if (l == 0) result.cells.push_back({l, schedule::engine, true});
      for (const schedule s : {schedule::each, schedule::each_after, schedule::fused_after}) {
        result.cells.push_back({l, s, false});
      }
    }
  }

  /// The table: all rounds, then the checks.
  void measure() {
    const unsigned steps = o_.iterations.value_or(default_steps);
    for (unsigned round = 0; round != o_.rounds; ++round) {
      job j = job_;
      j.passes.seed += round;
      j.warmup = o_.warmup.value_or(default_warmup);
      j.iterations = std::max(1U, (steps + o_.rounds - 1) / o_.rounds);
      std::vector<double> backward;
      for (engine_cell& c : result.cells) {
        const job_result r = submit(c, j);
        while (backward.size() < r.samples.size()) {
          backward.push_back(1e6 * slowest_pass(all_, j.passes, o_.ranks, backward.size()));
        }
        for (std::size_t i = 0; i != r.samples.size(); ++i) {
          c.steps.push_back(r.samples[i]);
          c.exposed.push_back(r.samples[i] - backward[i]);
        }
        c.step = summarise(c.steps);
        c.beyond = summarise(c.exposed);
      }
    }
    for (engine_cell& c : result.cells) {
      if (o_.checks == 0 || c.steps.empty() || !verifiable(job_.type, job_.op, o_.ranks)) continue;
      job j = job_;
      j.check = true;
      j.iterations = o_.checks;
      const job_result r = submit(c, j);
      if (r.state == outcome::done) c.wrong = r.wrong;
    }
  }

  void measure_engine_alone() {
    job j = job_;
    j.type = dtype::float32;
    j.op = redop::sum;
    j.passes.what = schedule::latency;
    j.warmup = latency_warmup;
    j.iterations = latency_calls;
    result.latency = summarise(done(libraries_[0]->run(j)).samples);
    if (o_.passes.idle_seconds <= 0) return;
    j.passes.what = schedule::idle;
    j.iterations = 2;
    const job_result r = done(libraries_[0]->run(j));
    result.idle_cpu = r.samples.at(0) * 1e-6 / o_.passes.idle_seconds;
    result.idle_woken = static_cast<std::uint64_t>(r.samples.at(1));
  }

  engine_result result;

 private:
  job_result submit(engine_cell& c, job j) {
    if (!c.error.empty()) return {};
    Library& library = *libraries_[c.library];
    if (library.description().empty()) {  // never ran; the head of the table has the reason
      c.error = library.missing();
      return {};
    }
    j.passes.what = c.what;
    if (c.traced) std::strncpy(j.passes.timeline, folder_.file().c_str(), sizeof j.passes.timeline - 1);
    job_result r = library.run(j);
    if (r.state == outcome::done) return r;
    c.error = r.problem;
    return {};
  }
  static job_result done(job_result r) {
    if (r.state != outcome::done) throw std::runtime_error("hvd's engine: " + r.problem);
    return r;
  }

  const options& o_;
  std::vector<std::unique_ptr<Library>>& libraries_;
  scratch folder_;
  std::vector<gradient> all_;
  job job_;
};

}  // namespace

int run_engine(const options& o, const std::optional<launched>& inside) {
  const machine m = machine::of_this_process();
  if (!o.json.empty()) check_result_file(o.json);
  check_memory(o, 1 + o.peers.size());
  if (inside) check_launched(*inside, o);
  if (inside && inside->rank > 0) {
    return serve_launched(*inside, {o.transport, o.algorithm, inside->key, o.ranks_per_gpu}, cpu_list(o, m));
  }
  options with_time = o;  // to stay idle, too
  with_time.limit_seconds = std::max(o.limit_seconds, o.passes.idle_seconds + 20);
  std::vector<std::unique_ptr<Library>> libraries = start_libraries(with_time, m, inside);
  const std::vector<rank_line> ranks = libraries[0]->ranks();
  engine_run run(o, libraries);
  print_head(o, m, run.result, lines_of(libraries), ranks);
  int signal = 0;
  try {
    run.measure();
    if (run.result.whole()) run.measure_engine_alone();
  } catch (const interrupted& e) {
    signal = e.signal;
  }
  const std::string interruption = signal == 0 ? "" : signal_name(signal);
  const std::vector<library_line> lines = lines_of(libraries);
  for (const auto& l : libraries) l->stop();
  print(run.result, o, lines, interruption);
  const bool keeps = !o.json.empty() && (signal == 0 || run.result.has_steps());
  if (keeps) write_result_file(o.json, json_of(run.result, o, m, lines, ranks, interruption));
  if (signal != 0) throw interrupted(signal, keeps ? "; " + o.json + " has what was measured until then" : "");
  return say_missing(lines) && run.result.whole() && run.result.wrong() == 0 ? 0 : 1;
}

}  // namespace hvd::bench
