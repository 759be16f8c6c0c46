/* tests/model/survivors.pml: the ranks that are left in a group agree on who they are, and make the next group.
 *
 * Models hvd/shared_memory/survivors.hpp.
 *
 * A rank says for which round it is ready, and waits until every other one is ready for that round or gone. Then it
 * writes those that are ready into its window, and puts the round and its own number into the header, unless another
 * rank was faster. All take the members from the window that the header names, and come together. A member may be killed
 * meanwhile; whether they have come together is decided once, and if not, they begin the next round. Any KILLS of the
 * ranks are killed, at any step.
 *
 * Claim: `mixed`. Ranks that go on are in one group, of which all that are alive are members; nobody is stuck.
 * Broken on purpose: see the #ifdefs.
 */
#ifndef P
#define P 3
#endif
#ifndef KILLS
#define KILLS 2
#endif
#define ROUNDS (KILLS + 2)
#define ALL ((1 << P) - 1)
#define bit(k) (1 << (k))
#define is_in(set, k) ((set) & bit(k))
#ifndef mixed
bool mixed
#endif

byte alive = ALL, kills, ended;
byte ready[P];              /* the round for which a rank is ready */
byte members[P];            /* what it proposes, in its window */
byte round_agreed, author;  /* the word in the header */
byte came[ROUNDS];          /* who has come to the group of a round */
byte formed[ROUNDS];        /* 0, 1: they are a group, 2: they are not */
byte group[P], in_round[P]; /* with whom a rank goes on, and since when */

#define gone(k) (!is_in(alive, k))
#ifdef ANY_ROUND
#define is_ready(k, r) (ready[k] != 0)
#else
#define is_ready(k, r) (ready[k] >= r)
#endif

inline settle(r, yes) {
#ifdef EACH_FOR_ITSELF
  is_group = yes
#else
  atomic {
    if
    :: formed[r] == 0 -> formed[r] = (yes -> 1 : 2)
    :: else
    fi;
    is_group = (formed[r] == 1)
  }
#endif
}

proctype Rank(byte me) {
  byte round, q, seen, mine, by;
  bool is_group;
  {
    do
    :: round++;
       assert(round < ROUNDS || mixed);
       ready[me] = round;
       do
       :: atomic { seen = round_agreed; by = author }; /* one word */
          if
          :: seen == round -> break
          :: else
          fi;
          q = 0;
          do
          :: q == P -> break
          :: q < P && (q == me || is_ready(q, round) || gone(q)) -> q++
          :: round_agreed == round -> break
          od;
          if
          :: q < P
          :: else ->
#ifdef NUMBER_FIRST
             atomic { if :: round_agreed == seen -> round_agreed = round; author = me :: else fi };
#endif
             atomic { members[me] = 0; q = 0 };
             do
             :: q == P -> break
             :: q < P -> if :: q == me || (is_ready(q, round) && !gone(q)) -> members[me] = members[me] | bit(q) :: else fi; q++
             od;
#ifdef BLIND
             atomic { round_agreed = round; author = me }
#elif !defined(NUMBER_FIRST)
             atomic { if :: round_agreed == seen -> round_agreed = round; author = me :: else fi }
#endif
          fi
       od;
       atomic { mine = members[by]; by = 0; q = 0; seen = 0 };
       assert(is_in(mine, me) || mixed);
       came[round] = came[round] | bit(me);
       if
       :: (came[round] & mine) == mine -> settle(round, true)
       :: (mine & ~alive) != 0 -> settle(round, false)
       :: formed[round] != 0 -> settle(round, false)
       fi;
       if
       :: is_group -> break
       :: else -> mine = 0
       fi
    od;
    atomic { group[me] = mine; in_round[me] = round; ended++ }
  } unless {
    gone(me) -> ended++
  }
}

inline check(a, b) {
  assert((group[a] == group[b] && in_round[a] == in_round[b]) || mixed)
}

init {
  byte k, m;
  atomic {
    do
    :: k < P -> run Rank(k); k++
    :: else -> break
    od
  }
  do
  :: kills < KILLS -> atomic {
       select(k : 0 .. P - 1);
       if :: is_in(alive, k) && group[k] == 0 -> alive = alive & ~bit(k) :: else fi;
       kills++
     }
  :: ended == P -> break
  od;
  atomic {
    for (k : 0 .. P - 1) {
      for (m : 0 .. P - 1) {
        if
        :: group[k] != 0 && !gone(k) && group[m] != 0 && !gone(m) -> check(k, m)
        :: else
        fi
      }
      assert(gone(k) || (group[k] & alive) == alive || mixed)
    }
  }
}
