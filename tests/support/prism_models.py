"""Markov chains of the literature and of small machines in the PRISM language, each with properties."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    text: str
    properties: tuple[str, ...]
    constants: dict[str, Any] = field(default_factory=dict)


DIE = """
dtmc
// A die from a fair coin (Knuth and Yao, 1976)
module die
  s : [0..7] init 0;
  d : [0..6] init 0;
  [] s=0 -> 0.5 : (s'=1) + 0.5 : (s'=2);
  [] s=1 -> 0.5 : (s'=3) + 0.5 : (s'=4);
  [] s=2 -> 0.5 : (s'=5) + 0.5 : (s'=6);
  [] s=3 -> 0.5 : (s'=1) + 0.5 : (s'=7) & (d'=1);
  [] s=4 -> 0.5 : (s'=7) & (d'=2) + 0.5 : (s'=7) & (d'=3);
  [] s=5 -> 0.5 : (s'=7) & (d'=4) + 0.5 : (s'=7) & (d'=5);
  [] s=6 -> 0.5 : (s'=2) + 0.5 : (s'=7) & (d'=6);
  [] s=7 -> (s'=7);
endmodule
rewards "flips" s<7 : 1; endrewards
label "done" = s=7;
"""

GAMBLER = """
dtmc
const int N;
const double p = 0.4;
module gambler
  x : [0..N] init floor(N/2);
  [] x>0 & x<N -> p : (x'=x+1) + 1-p : (x'=x-1);
  [] x=0 | x=N -> true;
endmodule
rewards "games" x>0 & x<N : 1; endrewards
"""

VON_NEUMANN = """
dtmc
const double p = 0.3;
module coin
  s : [0..3];  // 0 before the first toss, 1 heads, 2 tails, 3 decided
  fair : bool;
  [] s=0 -> p : (s'=1) + 1-p : (s'=2);
  [] s=1 -> 1-p : (s'=3) & (fair'=true) + p : (s'=0);
  [] s=2 -> p : (s'=3) & (fair'=false) + 1-p : (s'=0);
  [] s=3 -> true;
endmodule
rewards s<3 : 1; endrewards
"""

HERMAN = """
dtmc
// Self-stabilisation on a ring of three (Herman, 1990); two equal neighbours make a token
module one
  x1 : [0..1] init 1;
  [step] x1=x3 -> 0.5 : (x1'=0) + 0.5 : (x1'=1);
  [step] !(x1=x3) -> (x1'=x3);
endmodule
module two = one [x1=x2, x3=x1] endmodule
module three = one [x1=x3, x3=x2] endmodule
formula tokens = (x1=x2 ? 1 : 0) + (x2=x3 ? 1 : 0) + (x3=x1 ? 1 : 0);
label "stable" = tokens=1;
rewards "steps" true : 1; endrewards
"""

ELECTION = """
dtmc
module first
  a : [0..3] init 0;
  [draw] true -> 0.25:(a'=0) + 0.25:(a'=1) + 0.25:(a'=2) + 0.25:(a'=3);
endmodule
module second = first [a=b] endmodule
module rounds
  n : [0..20] init 0;
  [draw] n=0 | a=b -> (n'=min(n+1, 20));
endmodule
"""

ZEROCONF = """
dtmc
const int probes = 4;
const double q = 0.3;  // the address is taken
const double lost = 0.2;
module host
  s : [0..2] init 0;  // 0 choosing, 1 probing an address that is taken, 2 using one
  k : [0..probes] init 0;
  bad : bool init false;
  [] s=0 -> q : (s'=1) & (k'=0) + 1-q : (s'=2);
  [] s=1 & k<probes -> lost : (k'=k+1) + 1-lost : (s'=0) & (k'=0);
  [] s=1 & k=probes -> (s'=2) & (bad'=true);
  [] s=2 -> true;
endmodule
rewards "probes" s=1 : 1; endrewards
"""

RETRANSMISSION = """
dtmc
const int packets = 8;
const int tries = 3;
module sender
  i : [0..packets] init 0;
  t : [0..tries] init 0;
  failed : bool;
  [send] i<packets & t<tries & !failed -> 0.98*0.99 : (i'=i+1) & (t'=0) + 1-0.98*0.99 : (t'=t+1);
  [give_up] i<packets & t=tries & !failed -> (failed'=true);
  [] failed | i=packets -> true;
endmodule
rewards "sent" [send] true : 1; endrewards
"""

QUEUE = """
dtmc
const int K = 10;
const double arrive = 0.3; const double serve = 0.4;
module queue
  n : [0..K] init 0;
  full : bool;
  [] n=0 -> arrive : (n'=1) + 1-arrive : (n'=0);
  [] n>0 & n<K -> arrive*(1-serve) : (n'=n+1) + serve*(1-arrive) : (n'=n-1)
                  + 1-arrive*(1-serve)-serve*(1-arrive) : (n'=n);
  [] n=K -> serve : (n'=n-1) & (full'=true) + 1-serve : (full'=true);
endmodule
rewards "length" true : n; endrewards
"""

GRID = """
dtmc
const int N = 5;
module robot
  x : [1..N] init 1;
  y : [1..N] init 1;
  [] !pit & !goal -> 0.25 : (x'=min(x+1,N)) + 0.25 : (x'=max(x-1,1)) + 0.25 : (y'=min(y+1,N)) + 0.25 : (y'=max(y-1,1));
  [] pit | goal -> true;
endmodule
formula pit = (x=3 & y=2) | (x=2 & y=4);
formula goal = x=N & y=N;
label "pit" = pit;
label "goal" = goal;
rewards "moves" true : 1; endrewards
"""

PRODUCTION = """
dtmc
module source
  s : [0..1];
  [take] s=1 -> (s'=0);
  [] s=0 -> 0.7 : (s'=1) + 0.3 : true;
endmodule
module machine
  m : [0..2];  // idle, working, broken
  made : [0..5];
  [take] m=0 -> (m'=1);
  [] m=1 & made<5 -> 0.8 : (m'=0) & (made'=made+1) + 0.1 : (m'=2) + 0.1 : true;
  [] m=2 -> 0.5 : (m'=0) + 0.5 : true;
  [] made=5 -> true;
endmodule
rewards "repairs" m=2 : 1; endrewards
"""

CRAPS = """
dtmc
module game
  point : [0..10];
  s : [0..2];  // playing, won, lost
  [] s=0 & point=0 -> 8/36 : (s'=1) + 4/36 : (s'=2) + 3/36 : (point'=4) + 4/36 : (point'=5) + 5/36 : (point'=6)
                      + 5/36 : (point'=8) + 4/36 : (point'=9) + 3/36 : (point'=10);
  [] s=0 & point>0 -> ways/36 : (s'=1) + 6/36 : (s'=2) + 1-(ways+6)/36 : true;
  [] s>0 -> true;
endmodule
formula ways = 6-max(point-7, 7-point);
rewards "throws" s=0 : 1; endrewards
"""

COUPONS = """
dtmc
module collector
  a : bool; b : bool; c : bool; d : bool;
  [] true -> 0.4 : (a'=true) + 0.3 : (b'=true) + 0.2 : (c'=true) + 0.1 : (d'=true);
endmodule
label "all" = a & b & c & d;
rewards "bought" true : 1; endrewards
"""

BATTERY = """
dtmc
const int full = 20;
module rover
  charge : [0..full] init full;
  place : [0..6] init 0;
  [drive] place<6 & charge>1 -> 0.7 : (place'=place+1) & (charge'=charge-1) + 0.3 : (charge'=charge-2);
  [stop] place=6 | charge<=1 -> true;
endmodule
rewards "energy" [drive] true : 1.3; charge<5 : 0.25; endrewards
label "stranded" = place<6 & charge<=1;
"""

EPIDEMIC = """
dtmc
const int N = 8;
module people
  s : [0..N] init N-1;
  i : [0..N] init 1;
  [] i>0 -> spread : (s'=max(s-1,0)) & (i'=min(i+1,N)) + (1-spread)*0.4 : (i'=i-1) + (1-spread)*0.6 : true;
  [] i=0 -> true;
endmodule
formula spread = s*i/(N*N);
rewards "ill" true : i; endrewards
"""

CHANNELS = """
dtmc
const double good = 0.9;
module left
  u : bool init true;
  [tick] u -> good : (u'=true) + 1-good : (u'=false);
  [tick] !u -> 0.3 : (u'=true) + 0.7 : (u'=false);
endmodule
module right = left [u=v] endmodule
module count
  n : [0..6];
  [tick] n<6 -> (n'= !u & !v ? n+1 : 0);
  [tick] n=6 -> true;
endmodule
label "outage" = n=6;
rewards "down" !u & !v : 1; endrewards
"""

CROWDS = """
dtmc
const int members = 5; const int bad = 1;
const double forward = 0.8;
module message
  at : [0..3];  // at a member, at a bad one, delivered, seen
  hops : [0..15];
  [] at=0 & hops<15 -> forward*(1-bad/members) : (hops'=hops+1) + forward*bad/members : (at'=1) + 1-forward : (at'=2);
  [] at=0 & hops=15 -> (at'=2);
  [] at=1 -> 1/(members-bad) : (at'=3) + 1-1/(members-bad) : (at'=2);
  [] at>1 -> true;
endmodule
rewards "hops" true : hops/10; endrewards
"""

BACKOFF = """
dtmc
module one
  w1 : [0..8] init 1;
  k1 : [0..3] init 0;
  d1 : bool;
  [slot] w1>1 | d1 -> (w1'=max(w1-1,0));
  [slot] w1<=1 & !d1 & !(w2<=1 & !d2) -> (d1'=true);
  [slot] w1<=1 & !d1 & w2<=1 & !d2 -> 1/(k1+2) : (w1'=1) & (k1'=min(k1+1,3)) + 1-1/(k1+2) : (w1'=2*(k1+1)) & (k1'=min(k1+1,3));
endmodule
module two = one [w1=w2, k1=k2, d1=d2, w2=w1, d2=d1] endmodule
label "both" = d1 & d2;
rewards "slots" true : 1; endrewards
"""  # noqa: E501

SNAKES = """
dtmc
const int last = 20;
module piece
  x : [0..last] init 0;
  [] x<last -> 1/6 : (x'=to1) + 1/6 : (x'=to2) + 1/6 : (x'=to3) + 1/6 : (x'=to4) + 1/6 : (x'=to5) + 1/6 : (x'=to6);
  [] x=last -> true;
endmodule
formula to1 = x+1=17 ? 4 : x+1=3 ? 11 : min(x+1, last);
formula to2 = x+2=17 ? 4 : x+2=3 ? 11 : min(x+2, last);
formula to3 = x+3=17 ? 4 : x+3=3 ? 11 : min(x+3, last);
formula to4 = x+4=17 ? 4 : x+4=3 ? 11 : min(x+4, last);
formula to5 = x+5=17 ? 4 : x+5=3 ? 11 : min(x+5, last);
formula to6 = x+6=17 ? 4 : x+6=3 ? 11 : min(x+6, last);
rewards "throws" x<last : 1; endrewards
"""

REDUNDANCY = """
dtmc
const int n = 4; const int needed = 2;
const double fail = 0.05; const double mend = 0.2;
module parts
  up : [0..n] init n;
  [] up>=needed -> up*fail : (up'=up-1) + (up<n ? mend : 0) : (up'=min(up+1,n)) + 1-up*fail-(up<n ? mend : 0) : true;
  [] up<needed -> true;
endmodule
label "down" = up<needed;
rewards "missing" true : n-up; endrewards
"""

OVERLAPPING = """
dtmc
module both
  x : [0..3];
  [] x=0 -> 0.5 : (x'=1) + 0.5 : (x'=2);
  [other] x<=1 -> (x'=3);
endmodule
rewards [other] true : 2; [] true : 1; endrewards
"""

STUCK = """
dtmc
module once
  x : [0..2];
  [] x=0 -> 0.2 : (x'=1) + 0.8 : (x'=2);
  [] x=1 -> (x'=2);
endmodule
"""

FUNCTIONS = """
dtmc
const int M = 7;
module walk
  x : [0..48] init 1;
  [] true -> 1/3 : (x'=mod(x*3, M*M)) + 1/3 : (x'=mod(pow(x, 2)+1, 49)) + 1/3 : (x'=floor(x/2));
endmodule
label "zero" = x=0;
rewards "size" true : x>3 ? max(x, 7)/2 : ceil(x/2); endrewards
"""

EXAMPLES = {
    "die": Example(DIE, ("P=? [ F d=3 ]", "P=? [ F<=3 s=7 ]", 'R{"flips"}=? [ F "done" ]', "P=? [ G !(d=3) ]")),
    "gambler": Example(GAMBLER, ("P=? [ F x=N ]", 'R{"games"}=? [ F x=0 | x=N ]', "P=? [ x>3 U<=40 x=N ]"), {"N": 20}),
    "von_neumann": Example(VON_NEUMANN, ("P=? [ F s=3 & fair ]", "R=? [ F s=3 ]")),
    "herman": Example(HERMAN, ('P=? [ F<=4 "stable" ]', 'R{"steps"}=? [ F "stable" ]')),
    "election": Example(ELECTION, ("P=? [ F<=5 n>0 & a!=b ]", "P=? [ F n=20 ]")),
    "zeroconf": Example(ZEROCONF, ("P=? [ F bad ]", 'R{"probes"}=? [ F s=2 ]', "P=? [ F<=6 s=2 & !bad ]")),
    "retransmission": Example(RETRANSMISSION, ("P=? [ F failed ]", 'R{"sent"}=? [ F failed | i=packets ]')),
    "queue": Example(QUEUE, ("P=? [ F<=50 full ]", 'R{"length"}=? [ C<=30 ]', 'R{"length"}=? [ F full ]')),
    "grid": Example(GRID, ('P=? [ !"pit" U "goal" ]', 'R{"moves"}=? [ F "pit" | "goal" ]', 'P=? [ F<=9 "pit" ]')),
    "production": Example(PRODUCTION, ("P=? [ F<=30 made=5 ]", 'R{"repairs"}=? [ F made=5 ]')),
    "craps": Example(CRAPS, ("P=? [ F s=1 ]", 'R{"throws"}=? [ F s>0 ]')),
    "coupons": Example(COUPONS, ('R{"bought"}=? [ F "all" ]', 'P=? [ F<=10 "all" ]', "P=? [ !d U a & b & c ]")),
    "battery": Example(BATTERY, ('P=? [ F "stranded" ]', 'R{"energy"}=? [ F place=6 | charge<=1 ]')),
    "epidemic": Example(EPIDEMIC, ("P=? [ F i=0 & s>=N-2 ]", 'R{"ill"}=? [ F i=0 ]')),
    "channels": Example(CHANNELS, ('P=? [ F<=100 "outage" ]', 'R{"down"}=? [ C<=50 ]', "P=? [ X P>=0.5 [ X u & v ] ]")),
    "crowds": Example(CROWDS, ("P=? [ F at=3 ]", 'R{"hops"}=? [ F at>1 ]')),
    "backoff": Example(BACKOFF, ('P=? [ F "both" ]', 'P=? [ F<=6 "both" ]', 'R{"slots"}=? [ F "both" ]')),
    "snakes": Example(SNAKES, ('R{"throws"}=? [ F x=last ]', "P=? [ x!=11 U x=last ]", "P=? [ F<=5 x=last ]")),
    "redundancy": Example(REDUNDANCY, ('P=? [ F<=100 "down" ]', 'R{"missing"}=? [ F "down" ]')),
    "overlapping": Example(OVERLAPPING, ("P=? [ F x=2 ]", "R=? [ F x>=2 ]")),
    "stuck": Example(STUCK, ("P=? [ F x=1 ]", 'P=? [ F "deadlock" ]')),
    "functions": Example(FUNCTIONS, ('P=? [ F<=5 "zero" ]', 'R{"size"}=? [ C<=10 ]', 'P=? [ x!=7 U "zero" ]')),
}

# Two robots that move at the same time on a ring; each move may slip.
RING = """
mdp
const int N = 7;
module robots
  a : [0..N-1] init 0;
  b : [0..N-1] init 3;
  [left] a!=b -> 0.45 : (a'=mod(a+N-1, N)) & (b'=mod(b+1, N)) + 0.45 : (a'=mod(a+N-1, N)) + 0.1 : true;
  [stay] a!=b -> 0.5 : (b'=mod(b+1, N)) + 0.5 : true;
  [wave] a!=b -> 0.5 : (b'=mod(b+N-1, N)) + 0.5 : true;
  [right] a!=b -> 0.9 : (a'=mod(a+1, N)) & (b'=mod(b+1, N)) + 0.1 : (b'=mod(b+1, N));
endmodule
label "crash" = a=b;
rewards "steps" true : 1; endrewards
"""
