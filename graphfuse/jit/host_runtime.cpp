// Runs the blocks of a kernel on the CPU. Each thread of a block is a fiber: a function on a stack of its own that can
// give way in the middle. Warps run one after another until all their threads wait for the block or have returned, then
// the barrier opens. A thread that never waits costs a plain call: a fiber takes the warp's next thread until one waits.
// The blocks of a cluster run together; each opens its own barriers, and the cluster's opens when all blocks stand at it.

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

namespace {

constexpr size_t STACK = 64 << 10;
constexpr size_t SHIFT = 704;    // stacks start at different cache sets, else a thousand of them share eight lines
constexpr unsigned CHUNK = 32;   // stacks mapped at once
constexpr unsigned MAX_BLOCK = 1024;
constexpr unsigned MAX_CLUSTER = 8;  // blocks

// --- switching stacks, without a system call ---

// A switch is a jump, inlined: the compiler saves only the registers that are live, and the processor's stack of return
// addresses stays right. (A `ret` that leads to another stack is mispredicted each time, which costs more than the rest.)

#if defined(__x86_64__) && !defined(GF_UCONTEXT)
struct Context { void *sp; };
__attribute__((always_inline)) inline void gf_switch(Context *from, Context *to) {
    asm volatile(
        "addq $-128, %%rsp\n"  // the red zone below the stack pointer may hold values
        "leaq 1f(%%rip), %%rax\n"
        "pushq %%rax\n"
        "pushq %%rbp\n"
        "movq %%rsp, (%0)\n"
        "movq (%1), %%rsp\n"
        "popq %%rbp\n"
        "popq %%rax\n"
        "jmp *%%rax\n"
        "1: subq $-128, %%rsp\n"
        : "+D"(from), "+S"(to)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
          "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}
void prepare(Context &context, char *stack, size_t size, void (*entry)()) {
    auto top = reinterpret_cast<uintptr_t>(stack + size) & ~uintptr_t(15);
    auto *words = reinterpret_cast<void **>(top) - 3;  // rbp, where to jump, and a return address that nobody uses
    words[0] = words[2] = nullptr;
    words[1] = reinterpret_cast<void *>(entry);
    context.sp = words;
}
#elif defined(__aarch64__) && !defined(GF_UCONTEXT)
struct Context { void *sp; };
__attribute__((always_inline)) inline void gf_switch(Context *from, Context *to) {
    register Context *a asm("x0") = from;
    register Context *b asm("x1") = to;
    asm volatile(
        "adr x9, 1f\n"
        "stp x29, x9, [sp, #-16]!\n"
        "mov x9, sp\n"
        "str x9, [%0]\n"
        "ldr x9, [%1]\n"
        "mov sp, x9\n"
        "ldp x29, x9, [sp], #16\n"
        "br x9\n"
        "1:\n"
        : "+r"(a), "+r"(b)
        :
        : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22",
          "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
          "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",
          "v31", "memory", "cc");
}
void prepare(Context &context, char *stack, size_t size, void (*entry)()) {
    auto top = reinterpret_cast<uintptr_t>(stack + size) & ~uintptr_t(15);
    auto *words = reinterpret_cast<void **>(top) - 2;  // x29, and where to jump
    words[0] = nullptr;
    words[1] = reinterpret_cast<void *>(entry);
    context.sp = words;
}
#else
}  // namespace
#include <ucontext.h>
namespace {
struct Context { ucontext_t state; };
void gf_switch(Context *from, Context *to) { swapcontext(&from->state, &to->state); }
void prepare(Context &context, char *stack, size_t size, void (*entry)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = size;
    context.state.uc_link = nullptr;
    makecontext(&context.state, entry, 0);
}
#endif

// --- threads, warps, and the machine that runs a block ---

struct Fiber {
    Context context;
    char *stack;
    Fiber *next;  // in the list of free ones
};

struct alignas(64) Thread : gf_thread {  // one cache line
    Fiber *fiber;
    unsigned mask;
    unsigned char op, source;
    unsigned long long value, result;
};

struct Warp {  // bit sets of lanes
    unsigned all, unborn, live, ready, waiting, arrived;
};

struct Chunk {
    char *memory;
    Chunk *next;
    Fiber fibers[CHUNK];
};

const char *const NAMES[] = {"__syncthreads", "the barrier of a cluster", "__syncwarp", "a shuffle", "a vote"};

struct Machine;

struct Block : gf_block {  // a thread's `block` leads to its machine
    Machine *machine = nullptr;
    unsigned arrivals = 0;  // at a barrier
    bool same_site = true;
    int barrier_site = 0;  // of the thread that came last
    gf_op barrier = GF_BARRIER;
};

struct Machine {
    unsigned block_size = 0, cluster = 1;
    Context scheduler;
    Fiber *free = nullptr, *starting = nullptr;
    Chunk *chunks = nullptr;
    Warp *current = nullptr;
    gf_thread **slot = nullptr;
    void (*invoke)(const unsigned long long *) = nullptr;
    const unsigned long long *args = nullptr;
    bool reverse = false;
    char *error = nullptr;
    size_t error_size = 0;
    Block blocks[MAX_CLUSTER];
    Thread threads[MAX_CLUSTER * MAX_BLOCK];  // of one block after the other, each filled up to whole warps
    Warp warps[MAX_CLUSTER * MAX_BLOCK / 32];

    ~Machine() {
        for (Chunk *chunk = chunks; chunk;) {
            Chunk *next = chunk->next;
            munmap(chunk->memory, CHUNK * (STACK + SHIFT));
            delete chunk;
            chunk = next;
        }
    }

    unsigned block_warps() const { return (block_size + 31) / 32; }
    unsigned warp_count() const { return cluster * block_warps(); }
    bool lives(unsigned block) const;
    unsigned lane_of(unsigned lanes) const { return reverse ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes); }
    Thread &thread(const Warp &warp, unsigned lane) { return threads[(&warp - warps) * 32 + lane]; }
    Warp &warp_of(const Thread &thread) { return warps[(&thread - threads) / 32]; }
    unsigned bit_of(const Thread &thread) const { return 1u << ((&thread - threads) & 31); }

    bool add_fibers();
    void reset_fibers();
    void resume(Context &context) { gf_switch(&scheduler, &context); }
    bool start_warp(Warp &warp);
    bool run_warp(Warp &warp);
    bool release(Warp &warp);
    Thread *odd_one_out(Warp &warp, const Thread &first);
    bool release_group(Warp &warp, unsigned group);
    bool open_barriers();
    void open_barrier(unsigned block);
    bool fault_at_barrier(unsigned block);
    bool run_cluster(unsigned index);
    bool fault(const Thread &a, const char *how, const Thread &b);
};

thread_local Machine *machine_of_thread;

unsigned long long wait(gf_thread *base, gf_op op, int site, unsigned mask, unsigned long long value, unsigned source) {
    Thread &self = *static_cast<Thread *>(base);
    Block &block = *static_cast<Block *>(const_cast<gf_block *>(self.block));
    Machine &machine = *block.machine;
    Warp &warp = machine.warp_of(self);
    self.op = op, self.site = site, self.mask = mask, self.value = value, self.source = source < 32 ? source : 32;
    if (op == GF_BARRIER || op == GF_CLUSTER) {
        block.same_site &= !block.arrivals++ || (site == block.barrier_site && op == block.barrier);
        block.barrier_site = site, block.barrier = op;
        warp.arrived |= machine.bit_of(self);
    } else {
        warp.waiting |= machine.bit_of(self);
    }
    gf_switch(&self.fiber->context, &machine.scheduler);
    return self.result;
}

// What every fiber runs: the current warp's unborn threads, as many as it can; then it is free for another warp.
void fiber_main() {
    Machine &machine = *machine_of_thread;
    Fiber *fiber = machine.starting;
    for (;;) {
        while (machine.current->unborn) {
            Warp &warp = *machine.current;
            unsigned lane = machine.lane_of(warp.unborn);
            Thread &self = machine.thread(warp, lane);
            warp.unborn &= ~(1u << lane);
            self.fiber = fiber;
            *machine.slot = &self;
            machine.invoke(machine.args);
            warp.live &= ~(1u << lane);
        }
        fiber->next = machine.free;
        machine.free = fiber;
        gf_switch(&fiber->context, &machine.scheduler);
    }
}

bool Machine::add_fibers() {
    void *memory = mmap(nullptr, CHUNK * (STACK + SHIFT), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return snprintf(error, error_size, "no memory for the stacks of %u threads", CHUNK), false;
#ifdef MADV_NOHUGEPAGE
    madvise(memory, CHUNK * (STACK + SHIFT), MADV_NOHUGEPAGE);  // a stack touches a page or two of its 64 KiB
#endif
    chunks = new Chunk{static_cast<char *>(memory), chunks, {}};
    for (unsigned i = 0; i < CHUNK; i++) chunks->fibers[i].stack = chunks->memory + i * (STACK + SHIFT);
    for (unsigned i = CHUNK; i-- > 0;) {
        Fiber &fiber = chunks->fibers[i];
        prepare(fiber.context, fiber.stack, STACK, fiber_main);
        fiber.next = free;
        free = &fiber;
    }
    return true;
}

void Machine::reset_fibers() {  // after a fault: threads that still wait are forgotten
    free = nullptr;
    for (Chunk *chunk = chunks; chunk; chunk = chunk->next)
        for (Fiber &fiber : chunk->fibers) {
            prepare(fiber.context, fiber.stack, STACK, fiber_main);
            fiber.next = free;
            free = &fiber;
        }
}

bool Machine::start_warp(Warp &warp) {
    current = &warp;
    while (warp.unborn) {
        if (!free && !add_fibers()) return false;
        starting = free;
        free = free->next;
        resume(starting->context);
    }
    return true;
}

bool Machine::run_warp(Warp &warp) {  // until its threads wait for the block, or have returned
    if (!start_warp(warp)) return false;
    for (;;) {
        while (warp.ready) {
            Thread &next = thread(warp, lane_of(warp.ready));
            warp.ready &= ~bit_of(next);
            *slot = &next;
            resume(next.fiber->context);
        }
        if (!warp.waiting) return true;
        if (!release(warp)) return false;
    }
}

bool Machine::release(Warp &warp) {  // lets one complete group of waiting lanes go on
    for (unsigned left = warp.waiting; left; left &= left - 1) {
        Thread &first = thread(warp, __builtin_ctz(left));
        if (!(first.mask & bit_of(first))) return fault(first, "is not in its own mask; it meets", first);
        if (!odd_one_out(warp, first)) return release_group(warp, first.mask & warp.live);
    }
    Thread &stuck = thread(warp, __builtin_ctz(warp.waiting));
    Thread &other = *odd_one_out(warp, stuck);
    return fault(stuck, warp.waiting & bit_of(other) ? "meets" : "waits for", other);
}

Thread *Machine::odd_one_out(Warp &warp, const Thread &first) {  // a lane of first's group that is not at the same operation
    for (unsigned left = first.mask & warp.live; left; left &= left - 1) {
        Thread &other = thread(warp, __builtin_ctz(left));
        bool same = other.op == first.op && other.site == first.site && other.mask == first.mask;
        if (!same || !(warp.waiting & bit_of(other))) return &other;
    }
    return nullptr;
}

bool Machine::release_group(Warp &warp, unsigned group) {
    unsigned ballot = 0;
    for (unsigned left = group; left; left &= left - 1) ballot |= thread(warp, __builtin_ctz(left)).value ? left & -left : 0;
    for (unsigned left = group; left; left &= left - 1) {
        Thread &self = thread(warp, __builtin_ctz(left));
        if (self.op == GF_SHFL && !(self.source < 32 && (group >> self.source & 1))) {
            snprintf(error, error_size, "block %u, line %d: thread %u shuffles from lane %u, which takes no part", self.block->idx.x,
                     self.site, self.idx.x, self.source);
            return false;
        }
        self.result = self.op == GF_SHFL ? thread(warp, self.source).value : ballot;
    }
    warp.waiting &= ~group;
    warp.ready |= group;
    return true;
}

bool Machine::lives(unsigned block) const {
    unsigned live = 0;
    for (unsigned w = 0; w < block_warps(); w++) live |= warps[block * block_warps() + w].live;
    return live;
}

bool Machine::open_barriers() {  // every live thread stands at a barrier: is it the same one in its block, or in the cluster?
    bool opened = false;
    for (unsigned b = 0; b < cluster; b++) {
        if (!blocks[b].same_site) return fault_at_barrier(b);
        if (!blocks[b].arrivals || blocks[b].barrier == GF_CLUSTER) continue;
        open_barrier(b);
        opened = true;
    }
    if (opened) return true;
    for (unsigned b = 0; b < cluster; b++)
        if (!blocks[b].arrivals || blocks[b].barrier_site != blocks[0].barrier_site) {
            snprintf(error, error_size, "block %u is not at the cluster's barrier of line %d, where block %u is", blocks[b].idx.x,
                     blocks[!b].barrier_site, blocks[!b].idx.x);
            return false;
        }
    for (unsigned b = 0; b < cluster; b++) open_barrier(b);
    return true;
}

void Machine::open_barrier(unsigned block) {
    blocks[block].arrivals = 0;
    for (unsigned w = block * block_warps(); w < (block + 1) * block_warps(); w++) {
        warps[w].ready = warps[w].arrived;
        warps[w].arrived = 0;
    }
}

bool Machine::fault_at_barrier(unsigned block) {
    Thread *first = nullptr;
    for (unsigned t = block * block_warps() * 32; t < block * block_warps() * 32 + block_size; t++) {
        if (!(warps[t / 32].arrived >> t % 32 & 1)) continue;
        if (first && (threads[t].site != first->site || threads[t].op != first->op)) return fault(*first, "meets", threads[t]);
        first = &threads[t];
    }
    return false;
}

bool Machine::run_cluster(unsigned index) {
    for (unsigned b = 0; b < cluster; b++) {
        blocks[b].idx.x = index * cluster + b;
        blocks[b].arrivals = 0, blocks[b].same_site = true;
        for (unsigned w = 0; w < block_warps(); w++) {
            unsigned count = block_size - w * 32;
            unsigned all = count < 32 ? (1u << count) - 1 : ~0u;
            warps[b * block_warps() + w] = {all, all, all, 0, 0, 0};
        }
    }
    for (unsigned live = 1; live;) {
        live = 0;
        for (unsigned i = 0; i < warp_count(); i++) {
            Warp &warp = warps[reverse ? warp_count() - 1 - i : i];
            if (!run_warp(warp)) return false;
            live |= warp.live;
        }
        if (live && !open_barriers()) return false;
    }
    return true;
}

bool Machine::fault(const Thread &a, const char *how, const Thread &b) {
    snprintf(error, error_size, "block %u: thread %u at %s of line %d %s thread %u at %s of line %d", a.block->idx.x, a.idx.x, NAMES[a.op], a.site,
             how, b.idx.x, NAMES[b.op], b.site);
    return false;
}

struct Owner {
    Machine *machine = nullptr;
    ~Owner() { delete machine; }
};
thread_local Owner owner;

}  // namespace

// Runs clusters [first, last) of a grid, each of `cluster` blocks; returns 0, or 1 with a message in `error`. `slot` is where the
// kernel's library looks for the running thread. With `reverse`, blocks, warps and lanes go last to first: a race shows as a
// difference.
extern "C" __attribute__((visibility("default"))) int gf_run(
    void (*invoke)(const unsigned long long *), gf_thread **(*slot)(), const unsigned long long *args, unsigned first, unsigned last,
    unsigned grid, unsigned block, unsigned cluster, int reverse, char *error, size_t error_size) {
    if (block > MAX_BLOCK || cluster > MAX_CLUSTER) return snprintf(error, error_size, "%u threads by %u blocks", block, cluster), 1;
    if (!owner.machine) owner.machine = new Machine;
    Machine &machine = *owner.machine;
    machine_of_thread = &machine;
    machine.invoke = invoke, machine.slot = slot(), machine.args = args, machine.reverse = reverse;
    machine.error = error, machine.error_size = error_size;
    machine.block_size = block, machine.cluster = cluster;
    for (unsigned b = 0; b < cluster; b++) {
        machine.blocks[b].dim = {block, 1, 1}, machine.blocks[b].grid = {grid, 1, 1};
        machine.blocks[b].machine = &machine;
        for (unsigned t = 0; t < block; t++) {
            Thread &thread = machine.threads[b * machine.block_warps() * 32 + t];
            thread.idx = {t, 0, 0};
            thread.block = &machine.blocks[b];
            thread.wait = wait;
        }
    }
    for (unsigned i = 0; i < last - first; i++)
        if (!machine.run_cluster(reverse ? last - 1 - i : first + i)) return machine.reset_fibers(), 1;
    return 0;
}
