// What the host device's run time and a compiled kernel know of each other. Both sides compile this text.

struct gf_dim3 { unsigned x, y, z; };

struct gf_block { gf_dim3 idx, dim, grid; };

enum gf_op { GF_BARRIER, GF_CLUSTER, GF_SYNCWARP, GF_SHFL, GF_BALLOT };

// One thread of the block that is running. `wait` gives way to the other threads until the operation has its result;
// `site` is the source line of the operation, `mask` and `source` are lanes of the warp.
struct gf_thread {
    gf_dim3 idx;
    int site;
    const gf_block *block;
    unsigned long long (*wait)(gf_thread *self, gf_op op, int site, unsigned mask, unsigned long long value, unsigned source);
};
