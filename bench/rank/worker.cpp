// bench/rank/worker.cpp: the loop of a rank: it takes a job, runs it, and reports.
#include <bench/rank/worker.hpp>

#include <bench/cases/collectives.hpp>
#include <bench/cases/fused.hpp>
#include <bench/cases/replay.hpp>

#include <stdexcept>
#include <string>

namespace hvd::bench {
namespace {

/// Why the library cannot do the job; empty if it can.
std::string refusal(const erased_backend& b, const job& work) {
  const schedule what = work.passes.what;
  const bool by_name = what == schedule::engine || what == schedule::latency || what == schedule::idle;
  if (work.kind == collective::engine && by_name && !b.named) return "it takes no tensors by name";
  return b.supports(work);
}

}  // namespace

int serve(const Stage& stage, erased_backend b) {
  if (b.size != stage.ranks() || b.rank < 0 || b.rank >= b.size) {
    throw std::runtime_error("the library started " + std::to_string(b.size) + " ranks and says that this is rank " +
                             std::to_string(b.rank) + ", but " + std::to_string(stage.ranks()) +
                             " were asked for: the launcher and the library do not belong together");
  }
  rank_slot& mine = stage.slot(b.rank);
  if (b.rank == 0) stage.header().description.set(b.describe());
  if (b.device) {
    mine.device.set(b.device->name);
    mine.ordinal = b.device->ordinal;
  }
  stage.attach(b.rank, bound_cpu());
  KeptBuffers kept(b);
  std::uint64_t epoch = 0;
  for (std::uint32_t number = 0;;) {
    try {
      number = stage.next(number);
    } catch (const stage_ended&) {
      return 0;  // the usual end
    }
    const job work = stage.header().work;
    mine.wrong = 0;
    mine.elapsed = 0;
    mine.problem.set("");
    try {
      if (const std::string why = refusal(b, work); !why.empty()) {
        mine.result = outcome::unsupported;
        mine.problem.set(why);
      } else {
        b.prepare(work);
        if (work.kind == collective::fused) {
          run_fused(stage, b, work, epoch);
        } else if (work.kind == collective::engine) {
          run_replay(stage, b, work, epoch);
        } else {
          run_collective(stage, b, work, epoch, kept);
        }
        mine.result = outcome::done;
      }
    } catch (const stage_ended&) {
      return 3;
    } catch (const std::exception& e) {
      stage.report_failure(b.rank, number, e.what());
      return 1;
    }
    stage.report(b.rank, number);
  }
}

}  // namespace hvd::bench
