/* tests/model/lines.pml: one-shot exchanges over self-validating lines (parity buffers, no exit barrier).
 *
 * Models hvd/shared_memory/exchange.hpp.
 *
 * Exchange s = 1, 2, 3, ... of a group uses buffer s % 2 of one window for each rank that writes: payload words, then
 * the line's sequence word. The window changes every second exchange: rank r writes to that of rank r + s / 2. A reader
 * waits for the sequence word to equal s, reads the payload, and at the end stores done = s. `known` is a rank's own
 * lower bound of what all its peers have completed: before it writes s it needs known >= s - 2, and where that is not
 * so it waits for the peers' done. The kind of every exchange is chosen freely, once, and is the same on all ranks.
 *
 * Claim: what is read is the payload of this exchange, whole; all ranks get to the end. With OWN (memory.pml), 2 ranks
 * and all-to-all exchanges only: lines are written by who last read them.
 *
 * Parameters: P ranks, EXCHANGES (0: endless), LINES per buffer, WORDS of payload per line, KINDS (bit mask), WEAK,
 * OWN.
 * Broken on purpose: SEQ_FIRST, SEQ_RELAXED, LOAD_FIRST, ONE_BUFFER, NO_KNOWN, WINDOW=3, DONE_FIRST, DONE_RELAXED,
 * KNOWN_S, TURN_ON_WRITE (a rank counts turns only where it writes), TURN=0 (windows never change).
 * A change that does no harm but to OWN: TURN=1 (windows change with every exchange), and with 2 ranks WINDOW=4.
 */
#ifndef P
#define P 2
#endif
#ifndef EXCHANGES
#define EXCHANGES 6
#endif
#ifndef LINES
#define LINES 1
#endif
#ifndef WORDS
#define WORDS 2
#endif
#ifndef WINDOW
#define WINDOW 2 /* before exchange s is written, all must have completed s - WINDOW */
#endif

#ifndef TURN
#define TURN 2 /* exchanges until a rank writes to the next window; 0: never */
#endif
#ifndef KINDS
#define KINDS 62
#endif

#ifdef ONE_BUFFER
#define BUFFERS 1
#else
#define BUFFERS 2
#endif
#if EXCHANGES == 0
#define LAST 7 /* a rank waits here until the slowest has passed exchange 4 */
#else
#define LAST EXCHANGES
#endif

/* The bytes in the window of rank r: for each buffer and line its payload words and then its sequence word; at last
 * done. A payload word says in which exchange it was written, and by whom. */
#define LINE (WORDS + 1)
#define RANK (BUFFERS * LINES * LINE + 1)
#define BYTES (P * RANK)
#if TURN == 0
#define HOME(r) (r)
#elif defined(TURN_ON_WRITE)
byte turn[P];
#define HOME(r) (((r) + turn[me] / TURN) % P)
#else
#define HOME(r) (((r) + s / TURN) % P)
#endif
#define PAYLOAD(r, l, w) (HOME(r) * RANK + ((s % BUFFERS) * LINES + (l)) * LINE + (w))
#define VALUE(n, r) ((n) * P + (r))
#define SEQ(r, l) PAYLOAD(r, l, WORDS)
#define DONE(r) ((r) * RANK + RANK - 1)

/* Kinds of exchange. */
#define ALL 1   /* all-to-all */
#define FROM0 2 /* broadcast, scatter */
#define FROM1 3
#define TO0 4   /* gather, reduce */
#define PAIR 5  /* from 0 to 1 only: rank 2 takes no part */
byte kind[LAST + 1];   /* 0: not chosen yet, or over on all ranks */
byte passed[LAST + 1]; /* ranks that are through */
byte exchange[P];
byte known[P];
#define s exchange[me]
#define k kind[s]

#define WRITES(r) (k == ALL || (k == FROM0 && (r) == 0) || (k == FROM1 && (r) == 1) || (k == TO0 && (r) != 0) \
                   || (k == PAIR && (r) == 0))
#define READS(q) (q != me && WRITES(q) && (k != TO0 || me == 0) && (k != PAIR || me == 1))
#define READS_ALL (k == ALL || (k == TO0 && me == 0) || (P == 2 && !WRITES(me)))

#include "memory.pml"

#ifdef SEQ_RELAXED
#define publish_seq(l, v) store(l, v)
#else
#define publish_seq(l, v) publish(l, v)
#endif
#ifdef DONE_RELAXED
#define publish_done() store(DONE(me), s)
#else
#define publish_done() publish(DONE(me), s)
#endif
#ifdef SEQ_FIRST
#define STEP(w) (WORDS - (w))
#else
#define STEP(w) (w)
#endif

#define OFFER(x) :: (KINDS >> x) & 1 -> k = x

inline next_writer() {
  do
  :: q < P && !READS(q) -> q++
  :: else -> break
  od
}

inline next_line() {
  w = 0;
  i++;
  if
  :: i == LINES -> i = 0; q++; next_writer()
  :: else
  fi
}

#if EXCHANGES == 0
/* Endless runs have finitely many states because numbers count from the slowest rank: when all have passed exchange 4,
 * 5 becomes 3, 6 becomes 4 and so on. Parity stays; windows are renumbered, too, as exchanges 3 and 5 use different
 * ones; a payload or sequence word that nobody can expect any more becomes 0; `known` and done keep their distance to s
 * as long as it matters. */
#if defined(WEAK) || defined(OWN) || TURN != 2
#error "endless runs do not renumber what is outstanding or who has read, and know of one way to rotate"
#endif
#define LOWER(x) x = (x < 2 -> 0 : x - 2)
inline renumber() {
  if
  :: passed[4] == P ->
     q = 0;
     do
     :: q < P ->
        exchange[q] = exchange[q] - 2;
        LOWER(known[q]);
        q++
     :: else -> break
     od;
     q = 0;
     do
     :: q < BYTES ->
        if
        :: q % RANK == RANK - 1 -> LOWER(mem[q])
        :: q % RANK < RANK - 1 && q % RANK % LINE == WORDS -> mem[q] = (mem[q] <= 4 -> 0 : mem[q] - 2)
        :: q % RANK < RANK - 1 && q % RANK % LINE < WORDS -> mem[q] = (mem[q] < VALUE(5, 0) -> 0 : mem[q] - VALUE(2, 0))
        fi;
        q++
     :: else -> break
     od;
     q = 0;
     do
     :: q < RANK - 1 ->
        w = mem[q];
        i = 0;
        do
        :: i < P - 1 -> mem[i * RANK + q] = mem[(i + 1) * RANK + q]; i++
        :: else -> break
        od;
        mem[i * RANK + q] = w;
        q++
     :: else -> break
     od;
     i = 0;
     w = 0;
     q = 1;
     do
     :: q + 2 <= LAST -> kind[q] = kind[q + 2]; passed[q] = passed[q + 2]; q++
     :: q + 2 > LAST && q <= LAST -> kind[q] = 0; passed[q] = 0; q++
     :: else -> break
     od;
     q = 0
  :: else
  fi
}
#endif

proctype Rank(byte me) {
  byte q, i, w;
  s = 1;
next:
  atomic {
    s <= LAST ->
    if
    :: k == 0 ->
       if
       OFFER(ALL)
       OFFER(FROM0)
       OFFER(FROM1)
       OFFER(TO0)
#if P > 2
       OFFER(PAIR)
#endif
       fi
    :: else
    fi;
#ifdef TURN_ON_WRITE
    turn[me] = (turn[me] + WRITES(me)) % (P * TURN);
#endif
    if
    :: !WRITES(me) -> goto written
#ifndef NO_KNOWN
    :: WRITES(me) && known[me] + WINDOW < s
#endif
    :: else -> goto writable
    fi
  }
  do
  :: atomic { q < P && (q == me || mem[DONE(q)] + WINDOW >= s) -> q++ }
  :: atomic { q == P -> q = 0; known[me] = s - WINDOW; break }
  od;

writable:
  do
  :: atomic {
       i < LINES ->
       if
       :: STEP(w) < WORDS -> store(PAYLOAD(me, i, STEP(w)), VALUE(s, me))
       :: else -> publish_seq(SEQ(me, i), s)
       fi;
       w++;
       if
       :: w > WORDS -> w = 0; i++
       :: else
       fi;
       if
       :: i == LINES -> i = 0; break
       :: else
       fi
     }
  od;

written:
  atomic {
#ifdef DONE_FIRST
    publish_done();
#endif
    next_writer()
  }
  do
#ifdef LOAD_FIRST
  :: atomic { q < P && w < WORDS -> load(PAYLOAD(q, i, w), VALUE(s, q)); w++ }
  :: atomic { q < P && w == WORDS && mem[SEQ(q, i)] == s -> next_line() }
#else
  :: atomic { q < P && w == 0 && mem[SEQ(q, i)] == s -> w = 1 }
  :: atomic {
       q < P && w > 0 ->
       load(PAYLOAD(q, i, w - 1), VALUE(s, q));
       if
       :: w == WORDS -> next_line()
       :: else -> w++
       fi
     }
#endif
  :: atomic {
       q == P ->
       q = 0;
#ifndef DONE_FIRST
       publish_done();
#endif
       d_step {
         if
#ifdef KNOWN_S
         :: READS_ALL -> known[me] = s
#else
         :: READS_ALL -> known[me] = s - 1 /* that a peer published s proves that it completed s - 1 */
#endif
         :: else
         fi;
         passed[s]++;
#if EXCHANGES == 0
         s++;
         renumber()
#else
         if
         :: passed[s] == P -> passed[s] = 0; k = 0
         :: else
         fi;
         s++
#endif
       }
#if EXCHANGES == 0
       goto next
#else
       if
       :: s <= EXCHANGES -> goto next
       :: else -> break
       fi
#endif
     }
  od
}
