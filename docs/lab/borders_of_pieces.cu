// What a border between a captured piece and a launched split op costs, and what removes it.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <chrono>
#include <algorithm>
#include <string>
#define CK(x) do{ auto e_=(x); if(e_!=cudaSuccess){ printf("%s:%d %s\n",__FILE__,__LINE__,cudaGetErrorString(e_)); exit(1);} }while(0)
#define CU(x) do{ auto e_=(x); if(e_!=CUDA_SUCCESS){ const char*s_; cuGetErrorString(e_,&s_); printf("%s:%d %s\n",__FILE__,__LINE__,s_); exit(1);} }while(0)
// Reads n 16-byte words of w (all blocks), adds what in says, writes out. Weights are asked for before the wait.
extern "C" __global__ void __launch_bounds__(256) product(const uint4* w, size_t n, const float* in, float* out, int pdl) {
  size_t i = blockIdx.x * 256ull + threadIdx.x, step = gridDim.x * 256ull;
  uint4 first[8];
#pragma unroll
  for (int k = 0; k < 8; k++) first[k] = i + k * step < n ? __ldcs(w + i + k * step) : uint4{};
  if (pdl) { asm volatile("griddepcontrol.launch_dependents;"); asm volatile("griddepcontrol.wait;" ::: "memory"); }
  float x = *(volatile const float*)in; unsigned s = 0;
#pragma unroll
  for (int k = 0; k < 8; k++) s ^= first[k].x ^ first[k].y ^ first[k].z ^ first[k].w;
  for (size_t j = i + 8 * step; j < n; j += 8 * step) {
#pragma unroll
    for (int k = 0; k < 8; k++) if (j + k * step < n) { uint4 v = __ldcs(w + j + k * step); s ^= v.x ^ v.y ^ v.z ^ v.w; }
  }
  if (threadIdx.x == 0) out[blockIdx.x] = x + (s == 0x12345 ? 1.f : 0.f);
}
// A split op: reads a little, its length and step come from the host.
extern "C" __global__ void __launch_bounds__(256) attention(const uint4* kv, int len, int stepno, const float* in, float* out, int* seen, int pdl) {
  if (pdl) { asm volatile("griddepcontrol.launch_dependents;"); asm volatile("griddepcontrol.wait;" ::: "memory"); }
  unsigned s = 0; float x = in[0];
  for (int j = blockIdx.x * 256 + threadIdx.x; j < len; j += gridDim.x * 256) { uint4 v = kv[j]; s ^= v.x ^ v.w; }
  if (threadIdx.x == 0) out[blockIdx.x] = x + (s == 0x12345 ? 1.f : 0.f);
  if (threadIdx.x == 0 && blockIdx.x == 0) *seen = stepno;
}
struct Model { int layers; size_t qkv, o, gu, down; const char* name; };
static cudaStream_t st;
static uint4* weights; static uint4* kv; static float* act[8]; static int* seen;
static int SMS;
static void launch_product(const uint4* w, size_t bytes, int a, int b, bool pdl) {
  size_t n = bytes / 16; int grid = std::min<size_t>((n + 2047) / 2048, SMS * 4);
  cudaLaunchConfig_t c{}; c.gridDim = grid; c.blockDim = 256; c.stream = st;
  cudaLaunchAttribute at{}; at.id = cudaLaunchAttributeProgrammaticStreamSerialization; at.val.programmaticStreamSerializationAllowed = 1;
  c.attrs = &at; c.numAttrs = pdl ? 1 : 0;
  CK(cudaLaunchKernelEx(&c, product, (const uint4*)w, n, (const float*)act[a], act[b], (int)pdl));
}
static void launch_attention(int grid, int len, int stepno, bool pdl, int layer) {
  cudaLaunchConfig_t c{}; c.gridDim = grid; c.blockDim = 256; c.stream = st;
  cudaLaunchAttribute at{}; at.id = cudaLaunchAttributeProgrammaticStreamSerialization; at.val.programmaticStreamSerializationAllowed = 1;
  c.attrs = &at; c.numAttrs = pdl ? 1 : 0;
  CK(cudaLaunchKernelEx(&c, attention, (const uint4*)(kv + (size_t)layer * 131072), len, stepno, (const float*)act[1], act[2], seen + layer, (int)pdl));
}
static void piece_kernels(const Model& m, int i, bool pdl) { // after attention of layer i-1 to before attention of layer i
  size_t per = m.qkv + m.o + m.gu + m.down; char* base = (char*)weights;
  if (i > 0) { char* w = base + (size_t)(i - 1) * per + m.qkv;
    launch_product((uint4*)w, m.o, 2, 3, pdl); launch_product((uint4*)(w + m.o), m.gu, 3, 4, pdl); launch_product((uint4*)(w + m.o + m.gu), m.down, 4, 0, pdl); }
  if (i < m.layers) launch_product((uint4*)(base + (size_t)i * per), m.qkv, 0, 1, pdl);
}
static cudaGraphExec_t capture(void (*f)(const Model&, int, bool), const Model& m, int i, bool pdl, cudaGraph_t* keep = nullptr) {
  cudaGraph_t g; cudaGraphExec_t e; CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal)); f(m, i, pdl); CK(cudaStreamEndCapture(st, &g));
  CK(cudaGraphInstantiate(&e, g, 0)); CK(cudaGraphUpload(e, st)); if (keep) *keep = g; else CK(cudaGraphDestroy(g)); return e;
}
static int GRID = 8, LEN = 2048;
static void whole(const Model& m, int, bool pdl) { for (int i = 0; i <= m.layers; i++) { piece_kernels(m, i, pdl); if (i < m.layers) { launch_attention(GRID, LEN, 0, pdl, i); } } }
static double now() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
struct R { double device, wall, host; };
template <class F> static R timed(F f, int n) {
  for (int i = 0; i < 5; i++) f(i); CK(cudaStreamSynchronize(st));
  std::vector<double> d, w, h; cudaEvent_t a, b; CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
  for (int i = 0; i < n; i++) {
    double t = now(); CK(cudaEventRecord(a, st)); double t1 = now(); f(i); double t2 = now(); CK(cudaEventRecord(b, st)); CK(cudaStreamSynchronize(st)); double t3 = now();
    float ms; CK(cudaEventElapsedTime(&ms, a, b)); d.push_back(ms * 1000); h.push_back(t2 - t1); w.push_back(t3 - t); }
  // back to back: the next step is submitted while one runs
  double t = now(); for (int i = 0; i < n; i++) f(i); CK(cudaStreamSynchronize(st)); double per = (now() - t) / n;
  auto med = [](std::vector<double> v) { std::sort(v.begin(), v.end()); return v[v.size() / 2]; };
  return { med(d), per, med(h) };
}
static void row(const char* m, const char* what, R r) { printf("%-6s %-58s device %8.1f  back-to-back %8.1f  host %7.1f us\n", m, what, r.device, r.wall, r.host); fflush(stdout); }
static void check(const Model& m, int want, const char* what) { std::vector<int> s(m.layers); CK(cudaMemcpy(s.data(), seen, 4 * m.layers, cudaMemcpyDeviceToHost)); for (int v : s) if (v != want) { printf("WRONG %s: %d != %d\n", what, v, want); return; } }
int main() {
  CK(cudaSetDevice(0)); cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); SMS = p.multiProcessorCount; int drv; CK(cudaDriverGetVersion(&drv)); printf("%s, driver %d, %d SMs\n", p.name, drv, SMS);
  CK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
  Model models[] = { {36, 50331648, 33554432, 201326592, 100663296, "8b"}, {28, 8388608, 4194304, 12582912, 6291456, "0.6b"} };
  size_t most = 36ull * (50331648 + 33554432 + 201326592 + 100663296); CK(cudaMalloc(&weights, most)); CK(cudaMalloc(&kv, 64ull * 131072 * 16)); CK(cudaMalloc(&seen, 4 * 64));
  CK(cudaMemset(weights, 0x5a, most)); CK(cudaMemset(kv, 0x3c, 64ull * 131072 * 16)); for (auto& a : act) { CK(cudaMalloc(&a, 4096 * 4)); CK(cudaMemset(a, 0, 4096 * 4)); }
  for (auto& m : models) for (int round = 0; round < 2; round++) {
    int N = m.layers == 36 ? 60 : 200; const char* nm = m.name;
    cudaGraph_t fullg, fullp; cudaGraphExec_t full = capture(whole, m, 0, true, &fullg), plain = capture(whole, m, 0, false, &fullp);
    row(nm, "full: one graph, programmatic edges", timed([&](int) { CK(cudaGraphLaunch(full, st)); }, N));
    row(nm, "full: one graph, plain edges", timed([&](int) { CK(cudaGraphLaunch(plain, st)); }, N));
    row(nm, "none: launches, programmatic", timed([&](int s) { for (int i = 0; i <= m.layers; i++) { piece_kernels(m, i, true); if (i < m.layers) launch_attention(GRID, LEN, s, true, i); } }, N));
    std::vector<cudaGraphExec_t> pieces; for (int i = 0; i <= m.layers; i++) pieces.push_back(capture(piece_kernels, m, i, true));
    row(nm, "piecewise: graphs, ops launched (programmatic)", timed([&](int s) { for (int i = 0; i <= m.layers; i++) { CK(cudaGraphLaunch(pieces[i], st)); if (i < m.layers) launch_attention(GRID, LEN, s, true, i); } }, N));
    row(nm, "piecewise: graphs, ops launched (plain)", timed([&](int s) { for (int i = 0; i <= m.layers; i++) { CK(cudaGraphLaunch(pieces[i], st)); if (i < m.layers) launch_attention(GRID, LEN, s, false, i); } }, N));
    // one graph, nodes of the split ops set before each launch
    size_t nn = 0; CK(cudaGraphGetNodes(fullg, nullptr, &nn)); std::vector<cudaGraphNode_t> nodes(nn), ops; CK(cudaGraphGetNodes(fullg, nodes.data(), &nn));
    cudaFunction_t attn; CK(cudaGetFuncBySymbol(&attn, (const void*)attention));
    std::vector<CUDA_KERNEL_NODE_PARAMS> params;
    for (auto n : nodes) { CUDA_KERNEL_NODE_PARAMS q{}; CU(cuGraphKernelNodeGetParams((CUgraphNode)n, &q)); if (q.func == (CUfunction)attn) { ops.push_back(n); params.push_back(q); } }
    printf("%s: %zu nodes, %zu of split ops\n", nm, nn, ops.size());
    struct Args { const uint4* k; int len, step; const float* in; float* out; int* seen; int pdl; }; std::vector<Args> args(ops.size()); std::vector<std::vector<void*>> ptr(ops.size());
    for (size_t i = 0; i < ops.size(); i++) { void** o = params[i].kernelParams; args[i] = { *(const uint4**)o[0], *(int*)o[1], *(int*)o[2], *(const float**)o[3], *(float**)o[4], *(int**)o[5], *(int*)o[6] }; Args& a = args[i]; ptr[i] = { &a.k, &a.len, &a.step, &a.in, &a.out, &a.seen, &a.pdl }; params[i].kernelParams = ptr[i].data(); params[i].extra = nullptr; }
    int last = 0;
    auto set = [&](cudaGraphExec_t e, int s, bool grid, size_t upto) { for (size_t i = 0; i < upto; i++) { args[i].step = s; if (grid) params[i].gridDimX = 8 + (s & 7); CU(cuGraphExecKernelNodeSetParams((CUgraphExec)e, (CUgraphNode)ops[i], &params[i])); } };
    row(nm, "stitched: one graph, every op's arguments set", timed([&](int s) { set(full, s, false, ops.size()); last = s; CK(cudaGraphLaunch(full, st)); }, N)); check(m, last, "set");
    row(nm, "stitched: arguments and grid set", timed([&](int s) { set(full, s, true, ops.size()); last = s; CK(cudaGraphLaunch(full, st)); }, N)); check(m, last, "set grid");
    row(nm, "stitched: one op set", timed([&](int s) { set(full, s, true, 1); CK(cudaGraphLaunch(full, st)); }, N));
    // two executables in turn, so that one is set while the other runs
    cudaGraphExec_t two[2]; for (auto& e : two) { CK(cudaGraphInstantiate(&e, fullg, 0)); CK(cudaGraphUpload(e, st)); }
    row(nm, "stitched: two executables in turn", timed([&](int s) { set(two[s & 1], s, true, ops.size()); last = s; CK(cudaGraphLaunch(two[s & 1], st)); }, N)); check(m, last, "two");
    // whole graph update from a fresh capture
    row(nm, "recaptured and updated each step", timed([&](int) { cudaGraph_t g; CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal)); whole(m, 0, true); CK(cudaStreamEndCapture(st, &g)); cudaGraphExecUpdateResultInfo info; CK(cudaGraphExecUpdate(two[0], g, &info)); CK(cudaGraphLaunch(two[0], st)); CK(cudaGraphDestroy(g)); }, N / 2));
    // disabled nodes: an op with room for two launches of which one is off
    row(nm, "stitched: every op's node disabled and enabled, then set", timed([&](int s) { for (size_t i = 0; i < ops.size(); i++) { CU(cuGraphNodeSetEnabled((CUgraphExec)two[0], (CUgraphNode)ops[i], 0)); CU(cuGraphNodeSetEnabled((CUgraphExec)two[0], (CUgraphNode)ops[i], 1)); } set(two[0], s, true, ops.size()); CK(cudaGraphLaunch(two[0], st)); }, N));
    row(nm, "stitched: odd ops disabled", timed([&](int s) { if (s == 0) for (size_t i = 1; i < ops.size(); i += 2) CU(cuGraphNodeSetEnabled((CUgraphExec)two[0], (CUgraphNode)ops[i], 0)); CK(cudaGraphLaunch(two[0], st)); }, N));
    row(nm, "full again", timed([&](int) { CK(cudaGraphLaunch(full, st)); }, N));
    for (auto e : pieces) CK(cudaGraphExecDestroy(e)); for (auto e : two) CK(cudaGraphExecDestroy(e)); CK(cudaGraphExecDestroy(full)); CK(cudaGraphExecDestroy(plain)); CK(cudaGraphDestroy(fullg)); CK(cudaGraphDestroy(fullp));
  }
  return 0;
}
