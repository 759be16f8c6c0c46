/* tests/model/cells.pml: the pipeline over three reused cells, for messages above a few lines.
 *
 * Each rank has CELLS cells of P slots. Chunks are numbered 0, 1, 2, ... over all operations; chunk j uses cell
 * j % CELLS. Two counters per rank say how many chunks it has
 *   staged    copied in: slot q of its cell holds its input for rank q,
 *   reduced   read from all peers and, in allreduce and reduce, written as result to the slot of its own (the hole).
 * In step t a rank stages chunk t, reduces (or just reads) chunk t - 1 and copies out chunk t - 2. An operation begins
 * with a rendezvous, the all-to-all exchange of lines.pml, abstracted here: who passes it knows that all peers have
 * completed all before.
 *
 * allreduce      stages, reduces, copies out; cells are never waited for: that they are free follows from the counters
 *                already seen. This is the claim for three cells.
 * reduce         only the root copies out. stage(j) waits until all peers have reduced chunk j - 3. The hole is not
 *                waited for: that the root has staged chunk j shows that it has copied out j - 3.
 * reduce_scatter the same, with the result going straight to the output: no hole.
 * from, to, all  broadcast and scatter; gather; allgather and alltoall: the same, copying instead of reducing. Only who
 *                reads a cell is waited for.
 * The first three chunks of an operation wait for nothing: the rendezvous covers them.
 *
 * Claim: every slot read holds what the reader expects; all ranks get to the end.
 *
 * Parameters: P ranks, N0 and N1 chunks of the two operations, KINDS (bit mask of operations to choose from), WEAK.
 * Broken on purpose: CELLS=2, STAGED_FIRST, REDUCED_FIRST, STAGED_RELAXED, REDUCED_RELAXED, NO_STAGE_WAIT,
 * NO_RENDEZVOUS, WAIT_ALWAYS (the waits are for chunks of earlier operations, too).
 */
#ifndef P
#define P 2
#endif
#ifndef N0
#define N0 5
#endif
#ifndef N1
#define N1 4
#endif
#ifndef CELLS
#define CELLS 3
#endif
#ifndef KINDS
#define KINDS 511
#endif

#define ALLREDUCE 1
#define REDUCE0 2
#define REDUCE1 3
#define REDUCE_SCATTER 4
#define FROM0 5
#define FROM1 6
#define TO0 7
#define ALL 8
byte kind[2]; /* of the two operations; 0: not chosen yet */
#define K kind[o]

/* The bytes of rank r: slots, then counters. A slot holds which chunk it is of, and whether it is input or result. */
#define RANK (CELLS * P + 3)
#define BYTES (P * RANK)
#define SLOT(r, j, q) ((r) * RANK + ((j) % CELLS) * P + (q))
#define STAGED(r) ((r) * RANK + CELLS * P)
#define REDUCED(r) (STAGED(r) + 1)
#define ARRIVED(r) (STAGED(r) + 2)
#define INPUT(j) (2 * (j) + 1)
#define RESULT(j) (2 * (j) + 2)

#define FIRST (o * N0)
#define END (o == 0 -> N0 : N0 + N1)

#define IS_REDUCE (K == REDUCE0 || K == REDUCE1)
#define ROOT (K == REDUCE1 || K == FROM1)
#define STAGES(r) (!(K == FROM0 && (r) != 0) && !(K == FROM1 && (r) != 1) && !(K == TO0 && (r) == 0))
#define READS_CELLS(r) (!((K == FROM0 || K == FROM1) && (r) == ROOT) && !(K == TO0 && (r) != 0))
#ifdef WAIT_ALWAYS
#define WAIT_FROM 3
#else
#define WAIT_FROM (FIRST + 3)
#endif
#define HOLE (K == ALLREDUCE || (IS_REDUCE && me != ROOT))
#define COPIES_OUT (K == ALLREDUCE || (IS_REDUCE && me == ROOT))

#include "memory.pml"

#ifdef STAGED_RELAXED
#define publish_staged(v) store(STAGED(me), v)
#else
#define publish_staged(v) publish(STAGED(me), v)
#endif
#ifdef REDUCED_RELAXED
#define publish_reduced(v) store(REDUCED(me), v)
#else
#define publish_reduced(v) publish(REDUCED(me), v)
#endif

#define OFFER(x) :: (KINDS >> x) & 1 -> K = x

inline choose() {
  if
  :: K == 0 ->
     if
     OFFER(ALLREDUCE)
     OFFER(REDUCE0)
     OFFER(REDUCE1)
     OFFER(REDUCE_SCATTER)
     OFFER(FROM0)
     OFFER(FROM1)
     OFFER(TO0)
     OFFER(ALL)
     fi
  :: else
  fi
}

proctype Rank(byte me) {
  byte o, t, q;
  bool seen;
operation:
  atomic {
    choose();
    t = FIRST;
    if
    :: o > 0 -> publish(ARRIVED(me), o)
    :: else
    fi
  }
#ifndef NO_RENDEZVOUS
  do
  :: atomic { q < P && (q == me || mem[ARRIVED(q)] >= o) -> q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#endif

stage: /* chunk t */
  if
  :: atomic { !(t < END && STAGES(me)) -> goto reduce }
  :: atomic { t < END && STAGES(me) && (K == ALLREDUCE || t < WAIT_FROM) -> goto copy_in }
  :: atomic { t < END && STAGES(me) && K != ALLREDUCE && t >= WAIT_FROM }
  fi;
#ifndef NO_STAGE_WAIT
  do
  :: atomic { q < P && (q == me || !READS_CELLS(q) || mem[REDUCED(q)] + 2 >= t) -> q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#endif
copy_in:
#ifdef STAGED_FIRST
  publish_staged(t + 1);
#endif
  do
  :: atomic { q < P && (q == me || !READS_CELLS(q)) -> q++ }
  :: atomic { q < P && q != me && READS_CELLS(q) -> store(SLOT(me, t, q), INPUT(t)); q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#ifndef STAGED_FIRST
  publish_staged(t + 1);
#endif

reduce: /* or read, chunk t - 1 */
  if
  :: atomic { !(t > FIRST && t <= END && READS_CELLS(me)) -> goto copy_out }
  :: atomic { t > FIRST && t <= END && READS_CELLS(me) }
  fi;
  do
  :: atomic { q < P && (q == me || !STAGES(q)) -> q++ }
  :: atomic { q < P && q != me && STAGES(q) && !seen && mem[STAGED(q)] >= t -> seen = true }
  :: atomic { q < P && seen -> load(SLOT(q, t - 1, me), INPUT(t - 1)); seen = false; q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#ifdef REDUCED_FIRST
  publish_reduced(t);
#endif
  if
  :: atomic { HOLE -> derive(SLOT(me, t - 1, me), RESULT(t - 1)) }
  :: else
  fi;
#ifndef REDUCED_FIRST
  publish_reduced(t);
#endif

copy_out: /* chunk t - 2 */
  if
  :: atomic { !(t > FIRST + 1 && COPIES_OUT) -> goto step }
  :: atomic { t > FIRST + 1 && COPIES_OUT }
  fi;
  do
  :: atomic { q < P && q == me -> q++ }
  :: atomic { q < P && q != me && !seen && mem[REDUCED(q)] + 1 >= t -> seen = true }
  :: atomic { q < P && seen -> load(SLOT(q, t - 2, q), RESULT(t - 2)); seen = false; q++ }
  :: atomic { q == P -> q = 0; break }
  od;

step:
  atomic {
    if
    :: t <= END -> t++; goto stage
    :: t > END && o == 0 -> o++; goto operation
    :: else -> t = 0
    fi
  }
}
