// Clusters: the blocks of a row run at the same time and write into each other's shared memory. Follows prelude.cuh where a kernel
// has rows of clusters.

#ifndef GF_CLUSTERS  // 0 where nothing launches them
#if defined(GF_HOST) || __CUDA_ARCH__ >= 900
#define GF_CLUSTERS 1
#endif
#endif
#if GF_CLUSTERS
// GF_CLUSTER_SHARED(name, words, blocks): 8-byte words of shared memory in each block. A fold has room for the parts of all warps of
// the cluster, and for a barrier in memory that counts the bytes that arrive: no thread waits for more than what it reads.
#ifdef GF_HOST
#define GF_CLUSTER_SHARED(name, words, blocks) \
  __shared__ gf_u64 name##_of[blocks][words]; gf_u64* const name = name##_of[blockIdx.x % blocks]; constexpr int gf_room = words
GF_INLINE void gf_cluster_start(gf_u64*, int, int) {}
GF_INLINE void gf_cluster_wait() {}
GF_INLINE void gf_send(gf_u64* p, gf_u64 x, gf_u64*, int to, int from, int room) { p[(to - from) * room] = x; }
GF_INLINE void gf_expect(gf_u64*, int) {}
GF_INLINE void gf_arrived(gf_u64*) { ::gf_wait(::GF_CLUSTER, __LINE__, 0, 0, 0); }
#else
#define GF_CLUSTER_SHARED(name, words, blocks) __shared__ gf_u64 name[words]; constexpr int gf_room = words
GF_INLINE gf_u32 gf_shared(const gf_u64* p) {
  gf_u32 there;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(there) : "l"(p));
  return there;
}
GF_INLINE gf_u32 gf_remote(const gf_u64* p, int block) {  // the same place in another block of the cluster
  gf_u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(gf_shared(p)), "r"(block));
  return there;
}
// Makes the barriers of `folds` folds. No block may write to another before that one has made its own: gf_cluster_wait.
GF_INLINE void gf_cluster_start(gf_u64* scratch, int folds, int words) {
  if (threadIdx.x < folds) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(gf_shared(scratch + (threadIdx.x + 1) * words - 1)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
}
GF_INLINE void gf_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory"); }
GF_INLINE void gf_send(gf_u64* p, gf_u64 x, gf_u64* barrier, int to, int, int) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
               : : "r"(gf_remote(p, to)), "l"(x), "r"(gf_remote(barrier, to)) : "memory");
}
GF_INLINE void gf_expect(gf_u64* barrier, int bytes) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" : : "r"(gf_shared(barrier)), "r"(bytes) : "memory");
}
GF_INLINE void gf_arrived(gf_u64* barrier) {
  gf_u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(gf_shared(barrier)) : "memory");
  } while (!done);
}
#endif

// The fold over a cluster of `Blocks` blocks of `Block` threads: every warp sends its part to every block, and each warp folds all
// parts, in the same order. `scratch` is for this fold alone: two words for each warp of the cluster, and the barrier.
template <int Block, int Blocks, class Fold, class T> GF_INLINE T gf_cluster_fold(T x, gf_u64* scratch, int room) {
  GF_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x = Fold::apply(x, gf_shuffle_xor(x, mask));
  constexpr int warps = Block / 32, parts = warps * Blocks, words = (sizeof(T) + 7) / 8;
  union { T value; gf_u64 word[words]; } box;
  box.word[0] = 0;
  box.value = x;
  const int lane = threadIdx.x % 32, rank = blockIdx.x % Blocks;
  gf_u64* const barrier = scratch + 2 * parts;
  if (threadIdx.x == 0) gf_expect(barrier, parts * words * 8);
  if (lane < Blocks) {
    GF_UNROLL
    for (int w = 0; w < words; ++w) gf_send(scratch + (rank * warps + threadIdx.x / 32) * words + w, box.word[w], barrier, lane, rank, room);
  }
  gf_arrived(barrier);
  GF_UNROLL
  for (int part = 0; part < parts; part += 32) {
    GF_UNROLL
    for (int w = 0; w < words; ++w) box.word[w] = scratch[(part + lane % parts) * words + w];
    x = part ? Fold::apply(x, box.value) : box.value;
  }
  GF_UNROLL
  for (int mask = (parts < 32 ? parts : 32) / 2; mask > 0; mask /= 2) x = Fold::apply(x, gf_shuffle_xor(x, mask));
  return x;
}
#endif
