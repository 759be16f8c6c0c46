// index.hpp: reads timelines as they grow, and keeps sums over time, ranks and tensors. Memory does not grow with the
// number of events: views of single events read the files again (window.hpp).
//
// Any thread may call any function at any time. Calls of `read` run one after another.
#pragma once

#include "growing_file.hpp"
#include "model.hpp"
#include "process_sets.hpp"
#include "row_table.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hvd_timeline {

class index {
 public:
  /// Adds a file of the job and shifts its times by `shift_ns`. Duplicates the descriptor.
  std::size_t add_file(int fd, std::int64_t shift_ns);

  /// Reads new bytes of the files, at most about `most`; returns the number of bytes left. Throws `restarted`.
  std::uint64_t read(std::uint64_t most);

  // For the views and the model built on the index: hold the mutex.
  struct indexed_file {
    indexed_file(int fd, std::int64_t shift_ns) : file(fd, shift_ns) {}
    growing_file file;
    row_table rows;
    std::unordered_map<std::uint32_t, std::uint32_t> tensors;  ///< by "pid", which each rank numbers for itself
  };
  [[nodiscard]] std::mutex& mutex() const noexcept { return mutex_; }
  [[nodiscard]] const std::deque<indexed_file>& files() const noexcept { return files_; }
  [[nodiscard]] const totals& sums() const noexcept { return totals_; }
  [[nodiscard]] const std::vector<rank_state>& ranks() const noexcept { return ranks_; }
  [[nodiscard]] const std::vector<tensor_state>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::vector<row>& rows() const noexcept { return rows_; }
  [[nodiscard]] const process_sets& sets() const noexcept { return sets_; }
  [[nodiscard]] const activity_names& activities() const noexcept { return activities_; }
  [[nodiscard]] const std::deque<report>& reports() const noexcept { return reports_; }
  [[nodiscard]] const std::vector<long_slice>& long_slices() const noexcept { return long_slices_; }
  /// The shortest duration of a long slice, in nanoseconds.
  [[nodiscard]] std::int64_t long_from() const noexcept { return long_from_; }
  /// The span, in nanoseconds, of a cell that covers the whole job.
  [[nodiscard]] std::int64_t width() const noexcept { return width_; }

 private:
  static constexpr std::size_t most_tensors = std::size_t{1} << 18, most_rows = std::size_t{1} << 20;
  static constexpr std::size_t most_reports = 10, most_long_slices = std::size_t{1} << 15;
  // For all ranks together. A cell has some 100 bytes.
  static constexpr std::size_t most_cells = std::size_t{1} << 17, most_cells_of_a_rank = 4096;

  void take(indexed_file& from, const line_event& e);
  void begin(indexed_file& from, const line_event& e, std::int64_t time);
  void end(indexed_file& from, const line_event& e, std::int64_t time);
  void end_activity(row& r, rank_state& rank, std::int64_t time, bool unfinished);
  void abandon(row& r, rank_state& rank);
  void finish(row& r, rank_state& rank, std::uint16_t name, const line_event& e, std::int64_t time);
  void wait(indexed_file& from, const line_event& e, std::int64_t time);
  void instant(const line_event& e, std::int64_t time);
  void metadata(indexed_file& from, const line_event& e);

  row* row_of(indexed_file& from, const line_event& e);
  std::uint32_t tensor_named(std::string_view name, std::uint32_t process);
  std::uint32_t rank_index(std::uint32_t rank);
  rank_cells::pair cells(rank_state& rank, std::int64_t time);
  void count_event(rank_state& rank, std::int64_t time);
  void make_room(std::int64_t time);
  void add_span(rank_state& rank, std::int64_t cell::*member, std::int64_t begin, std::int64_t end);

  // Sums of the time in which at least one thing goes on: in any process set, and in that of all ranks.
  struct measure {
    open_span rank_state::*any;
    std::int64_t cell::*any_time;
    open_span rank_state::*global;
    std::int64_t cell::*global_time;
  };
  static constexpr measure run{&rank_state::running, &cell::busy, &rank_state::global_running, &cell::global_busy};
  static constexpr measure negotiation{&rank_state::negotiating, &cell::negotiating, &rank_state::global_negotiating,
                                       &cell::global_negotiating};
  void open(const row& r, rank_state& rank, const measure& what, std::int64_t time);
  void close(const row& r, rank_state& rank, const measure& what, std::int64_t time);
  void close(rank_state& rank, open_span& span, std::int64_t cell::*member, std::int64_t time);
  void keep_long(const long_slice& slice);

  mutable std::mutex mutex_;
  std::mutex reading_;
  std::deque<indexed_file> files_;
  totals totals_;
  std::vector<rank_state> ranks_;
  std::vector<std::uint32_t> rank_indices_;
  std::vector<tensor_state> tensors_;
  std::map<std::string, std::uint32_t, std::less<>> by_name_;
  process_sets sets_;
  std::int64_t size_ = 2;  // of the job, for ranks that do not record it
  std::vector<row> rows_;
  activity_names activities_;
  std::deque<report> reports_;
  std::vector<long_slice> long_slices_;
  std::int64_t long_from_ = rank_cells::second / 20;
  std::int64_t width_ = rank_cells::first_width;
  std::int64_t room_ = 0;  // earlier times need no more room
};

/// The size in bytes of a tensor, from its dtype and first dimensions as the timeline shows them: "float32", "[64,
/// 512]". At most 10^18, so that sums stay finite even if a file is damaged.
double tensor_bytes(std::string_view dtype, std::string_view shape) noexcept;

}  // namespace hvd_timeline
