// c/collectives.hpp: collectives on elements whose type is a number, with the checks and messages of the typed ones.
#pragma once

#include "communicator.hpp"

#include <hvd/c/hvd.h>
#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/dtype.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/tensors.hpp>

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace hvd::inline HVD_ABI::c {

static_assert(static_cast<int>(dtype::complex128) == HVD_COMPLEX128 && static_cast<int>(dtype::user) == 15);
static_assert(static_cast<int>(dtype::float16) == HVD_FLOAT16 && static_cast<int>(dtype::boolean) == HVD_BOOL);
static_assert(static_cast<int>(reduce_op::adasum) == HVD_ADASUM && static_cast<int>(reduce_op::product) == HVD_PRODUCT);

constexpr bool is_dtype(int number) noexcept { return number >= HVD_INT8 && number <= HVD_COMPLEX128; }
constexpr bool is_op(int number) noexcept { return number >= HVD_AVERAGE && number <= HVD_PRODUCT; }
inline constexpr const char* allowed_dtypes = "; allowed: 0 (HVD_INT8) to 14 (HVD_COMPLEX128)";
inline constexpr const char* allowed_ops = "; allowed: 0 (HVD_AVERAGE) to 5 (HVD_PRODUCT)";

/// The arguments of one call on elements of a type that is known at run time. Problems are collected; `check` throws
/// them, and with HVD_CHECK informs the other ranks.
class checked {
 public:
  checked(communicator& comm, operation kind, int type, const char* suffix = "")
      : comm_(comm), found_(kind, comm.rank(), comm.size(), suffix) {
    if (!is_dtype(type)) [[unlikely]] {
      found_.refuse({"dtype ", type, " is not an element type", allowed_dtypes});
    } else {
      type_ = static_cast<dtype>(type);
      unit_ = size_of(type_);
    }
  }

  [[nodiscard]] std::size_t unit() const noexcept { return unit_; }
  [[nodiscard]] detail::arguments& found() noexcept { return found_; }
  /// Throws if a problem was found; the communicator is usable afterwards.
  void check() {
    if (!found_.valid()) [[unlikely]]
      found_.check(comm_);
  }
  /// The same for operations that not all ranks call.
  void check_alone() { found_.check_alone(); }

  checked& root(int r) {
    found_.root(r);
    return *this;
  }
  /// A buffer of `count` elements.
  checked& buffer(const char* name, const void* data, std::size_t count) {
    found_.buffer(name, data, count, unit_);
    return *this;
  }
  checked& apart(const void* in, std::size_t in_count, const void* out, std::size_t out_count, bool in_place) {
    found_.apart(bytes(in), in_count * unit_, bytes(out), out_count * unit_, in_place);
    return *this;
  }
  /// The blocks of all ranks; throws if they cannot be used.
  std::span<const std::size_t> blocks(const char* name, const std::size_t* counts) {
    if (counts == nullptr) {
      found_.refuse({name, " is null; pass ", comm_.size(), " counts, one for each rank"});
      check();
    }
    const std::span all(counts, static_cast<std::size_t>(comm_.size()));
    found_.counts(name, all, unit_);
    check();
    return all;
  }
  /// The reduction; if it is invalid, `check` throws the reason.
  reduction reduces(int op, double prescale = 1.0, double postscale = 1.0) {
    if (!is_op(op)) [[unlikely]] {
      found_.refuse({"op ", op, " is not a reduction", allowed_ops});
    } else {
      try {
        return make_reduction(type_, static_cast<reduce_op>(op), comm_.size(), prescale, postscale);
      } catch (const error& e) {
        found_.refuse({detail::sentence(e)});
      }
    }
    return make_reduction(dtype::float32, reduce_op::sum, 1);
  }

  static const std::byte* bytes(const void* p) noexcept { return static_cast<const std::byte*>(p); }
  static std::byte* bytes(void* p) noexcept { return static_cast<std::byte*>(p); }

 private:
  communicator& comm_;
  detail::arguments found_;
  dtype type_ = dtype::uint8;
  std::size_t unit_ = 1;
};

template <class Call>
void reduce_vector(communicator& comm, const void* in, void* out, std::size_t count, int type, int op,
                   double prescale = 1.0, double postscale = 1.0) {
  checked a(comm, Call::kind, type);
  a.buffer("input", in, count).buffer("output", out, count).apart(in, count, out, count, in == out);
  if constexpr (Call::kind == operation::scan || Call::kind == operation::exscan) {
    if (op == HVD_AVERAGE) {
      a.found().refuse(
          {"there is no average, because each rank combines a different number of ranks; use HVD_SUM and divide"});
    }
  }
  const reduction r = a.reduces(op, prescale, postscale);
  a.check();
  comm.run(Call{a.bytes(in), a.bytes(out), count, r});
}

inline void reduce(communicator& comm, const void* in, void* out, std::size_t count, int type, int op, int root) {
  checked a(comm, operation::reduce, type);
  a.buffer("input", in, count).root(root);
  if (comm.rank() == root) a.buffer("output", out, count).apart(in, count, out, count, in == out);
  const reduction r = a.reduces(op);
  a.check();
  comm.run(reduce_call{a.bytes(in), a.bytes(out), count, r, root});
}

inline void broadcast(communicator& comm, const void* in, void* out, std::size_t count, int type, int root) {
  checked a(comm, operation::broadcast, type);
  a.buffer("output", out, count).root(root);
  if (comm.rank() == root) a.buffer("input", in, count).apart(in, count, out, count, in == out);
  a.check();
  comm.run(broadcast_call{a.bytes(in), a.bytes(out), count * a.unit(), root});
}

// ---- blocks: `own` elements of this rank, `all.total_count()` of all ------------------------------------------

/// The blocks of `count` elements each. Throws if so many cannot be addressed, also on ranks that do not touch them.
inline partition equal_blocks(checked& a, communicator& comm, const char* name, std::size_t count) {
  a.found().addressable(name, detail::blocks_of(count, comm.size()), a.unit());
  a.check();
  return {comm.size(), count, a.unit()};
}

inline void allgather(communicator& comm, checked& a, const void* in, void* out, const partition& all) {
  const std::size_t own = all.count(comm.rank()), total = all.total_count();
  a.buffer("input", in, own).buffer("output", out, total);
  a.apart(in, own, out, total, detail::lies_at(a.bytes(in), a.bytes(out), all.offset(comm.rank())));
  a.check();
  comm.run(allgather_call{a.bytes(in), a.bytes(out), all});
}

inline void gather(communicator& comm, checked& a, const void* in, void* out, const partition& all, int root) {
  const std::size_t own = all.count(comm.rank()), total = all.total_count();
  a.buffer("input", in, own);
  if (comm.rank() == root) {
    a.buffer("output", out, total);
    a.apart(in, own, out, total, detail::lies_at(a.bytes(in), a.bytes(out), all.offset(root)));
  }
  a.check();
  comm.run(gather_call{a.bytes(in), a.bytes(out), all, root});
}

inline void scatter(communicator& comm, checked& a, const void* in, void* out, const partition& all, int root) {
  const std::size_t own = all.count(comm.rank()), total = all.total_count();
  a.buffer("output", out, own);
  if (comm.rank() == root) {
    a.buffer("input", in, total);
    a.apart(in, total, out, own, detail::lies_at(a.bytes(out), a.bytes(in), all.offset(root)));
  }
  a.check();
  comm.run(scatter_call{a.bytes(in), a.bytes(out), all, root});
}

inline void reduce_scatter(communicator& comm, checked& a, const void* in, void* out, const partition& all, int op) {
  const std::size_t own = all.count(comm.rank()), total = all.total_count();
  a.buffer("input", in, total).buffer("output", out, own);
  a.apart(in, total, out, own, detail::lies_at(a.bytes(out), a.bytes(in), all.offset(comm.rank())));
  const reduction r = a.reduces(op);
  a.check();
  comm.run(reduce_scatter_call{a.bytes(in), a.bytes(out), all, r});
}

inline void alltoall(communicator& comm, const void* in, void* out, std::size_t count, int type) {
  checked a(comm, operation::alltoall, type);
  const partition all = equal_blocks(a, comm, "input", count);
  const std::size_t total = all.total_count();
  a.buffer("input", in, total).buffer("output", out, total).apart(in, total, out, total, in == out).check();
  comm.run(alltoall_call{a.bytes(in), a.bytes(out), all, all});
}

inline void alltoall_v(communicator& comm, const void* in, void* out, const std::size_t* send,
                       const std::size_t* receive, int type) {
  checked a(comm, operation::alltoall, type, "_v");
  const partition to(a.blocks("send", send), a.unit()), from(a.blocks("receive", receive), a.unit());
  a.buffer("input", in, to.total_count()).buffer("output", out, from.total_count());
  a.apart(in, to.total_count(), out, from.total_count(), false);
  if (comm.size() == 1) a.found().equal("receive", from.count(0), "as in send", to.count(0));
  a.check();
  comm.run(alltoall_call{a.bytes(in), a.bytes(out), to, from});
}

// ---- lists ----------------------------------------------------------------------------------------------------

/// The tensors of a list. Throws for problems that FusionBuffer cannot check.
inline tensor_list list_of(communicator& comm, operation kind, const hvd_tensor* tensors, std::size_t n) {
  detail::arguments found(kind, comm.rank(), comm.size());
  tensor_list list;
  if (tensors == nullptr && n != 0) {
    found.refuse({"the list of tensors is null but has ", n, " of them"});
    n = 0;
  }
  found.addressable("the list of tensors", n, sizeof(hvd_tensor));
  found.check(comm);
  for (std::size_t i = 0; i != n; ++i) {
    const hvd_tensor& t = tensors[i];
    if (!is_dtype(t.dtype)) {
      found.refuse({"tensor ", i, " has dtype ", t.dtype, ", which is not an element type", allowed_dtypes});
    } else if (t.wire != 0 && !is_dtype(t.wire)) {
      found.refuse({"tensor ", i, " has wire ", t.wire, ", which is not an element type; allowed: 0, its dtype ",
                    t.dtype, ", or a smaller floating-point type for a larger one"});
    }
    list.add(fused{checked::bytes(t.in), checked::bytes(t.out), t.count, static_cast<dtype>(t.dtype),
                   static_cast<dtype>(t.wire == 0 ? t.dtype : t.wire)});
  }
  found.check(comm);
  return list;
}

inline void allreduce_list(communicator& comm, const hvd_tensor* tensors, std::size_t n, const dynamic_op& how,
                           int op) {
  if (!is_op(op)) {
    detail::arguments found(operation::allreduce, comm.rank(), comm.size());
    found.refuse({"op ", op, " is not a reduction", allowed_ops});
    found.check(comm);
  }
  hvd::allreduce(static_cast<any_transport&>(comm), list_of(comm, operation::allreduce, tensors, n), how);
}

inline void allreduce(communicator& comm, const void* in, void* out, std::size_t count, int type, int op,
                      double prescale = 1.0, double postscale = 1.0) {
  if (op != HVD_ADASUM) [[likely]]
    return reduce_vector<allreduce_call>(comm, in, out, count, type, op, prescale, postscale);
  const hvd_tensor alone{in, out, count, type, type};  // adasum is not an elementwise reduction, but lists support it
  allreduce_list(comm, &alone, 1, {reduce_op::adasum, prescale, postscale}, op);
}

}  // namespace hvd::inline HVD_ABI::c
