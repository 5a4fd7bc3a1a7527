// A block of CUDA threads on one host thread: each is a fiber that yields at barriers. Blocks run
// one after the other, those of a cluster in turn, each with its shared memory swapped in. Only what the generated kernels use is here; exited threads do not count
// at barriers, which generated kernels never ask for.
#include <cstring>
#include <cmath>

// Dynamic shared memory, and what nothing may write past the bytes that a launch has of it.
extern unsigned char emu_dynamic[1 << 18];
void emu_guard(size_t bytes);
void emu_guarded(size_t bytes);
// Memory of whole pages, all 0xff.
char*emu_memory(size_t bytes);
// Memory of which the next launch may touch nothing before its wait: there is no such memory for each
// block until all of its threads have come to the wait or can't go on without those that have.
void emu_hide(char*at,size_t bytes,const char*what);
// Some bytes of memory that is there: no copy of theirs may be asked for before the wait, and where they are
// whole pages, nothing may touch them.
void emu_hide_part(char*at,size_t bytes,const char*what);
void emu_wait();
// What no machine does.
void emu_refuse(const char*what);
// Counts what threads come to, so that what a round of all of them left as it was is seen.
extern unsigned long emu_moves;
struct Dim3{unsigned x,y,z;};
struct Fiber{void*sp;Dim3 tid;bool done;char*stack;};
// What a block has for itself beside dynamic shared memory lies in a section of its own.
#define EMU_BLOCK __attribute__((section("emu_block")))
extern unsigned emu_cluster,emu_rank;
extern Fiber*emu_cur;extern Dim3 blockIdx,blockDim,gridDim;
#define threadIdx (emu_cur->tid)
void emu_yield();
struct Bar{int arrived=0;unsigned gen=0;void wait(int n);};
extern Bar warpbar[64],blockbar,groupbar[64];
extern unsigned long long slots[64][32];
extern Bar clusterbar;
#define __device__
#define __global__
#define __forceinline__ inline
#ifndef __shared__
#define __shared__ static
#endif
#define __launch_bounds__(...)
static inline unsigned emu_w(){return threadIdx.x/32;}static inline unsigned emu_l(){return threadIdx.x%32;}
static inline void __syncwarp(){warpbar[emu_w()].wait(32);}
static inline void __syncthreads(){blockbar.wait(blockDim.x);}
template<class T>static T emu_shfl(T x,unsigned src){unsigned w=emu_w();unsigned long long b=0;memcpy(&b,&x,sizeof x);slots[w][emu_l()]=b;warpbar[w].wait(32);T r;memcpy(&r,&slots[w][src],sizeof r);warpbar[w].wait(32);return r;}
template<class T>static T __shfl_xor_sync(unsigned,T x,int m){return emu_shfl(x,emu_l()^m);}
template<class T>static T __shfl_up_sync(unsigned,T x,int d){unsigned l=emu_l();return emu_shfl(x,l>=(unsigned)d?l-d:l);}
template<class T>static T __shfl_sync(unsigned,T x,int s){return emu_shfl(x,s);}
static unsigned __ballot_sync(unsigned,bool p){unsigned w=emu_w();slots[w][emu_l()]=p;warpbar[w].wait(32);unsigned r=0;for(int i=0;i<32;i++)r|=(unsigned)slots[w][i]<<i;warpbar[w].wait(32);return r;}
static float __uint_as_float(unsigned u){float f;memcpy(&f,&u,4);return f;}
static float __int_as_float(int u){float f;memcpy(&f,&u,4);return f;}
static unsigned __float_as_uint(float f){unsigned u;memcpy(&u,&f,4);return u;}
static float __double2float_rn(double d){return (float)d;}
static float __double2float_rz(double d){float f=(float)d;if(fabs((double)f)>fabs(d))f=nextafterf(f,0);return f;}
static unsigned long long __umul64hi(unsigned long long a,unsigned long long b){return (unsigned long long)(((unsigned __int128)a*b)>>64);}
static int __ffs(int x){return __builtin_ffs(x);}
static int __clz(int x){return x?__builtin_clz(x):32;}
static int __popc(unsigned x){return __builtin_popcount(x);}
static unsigned long long atomicAdd(unsigned long long*p,unsigned long long v){auto o=*p;*p+=v;return o;}
static unsigned short emu_bf16(float x){unsigned b=__float_as_uint(x);if((b&0x7fffffff)>0x7f800000)return 0x7fff;return (b+0x7fff+((b>>16)&1))>>16;}
static unsigned short emu_f16(float x){_Float16 h=(_Float16)x;unsigned short u;memcpy(&u,&h,2);return u;}
static float emu_unf16(unsigned short u){_Float16 h;memcpy(&h,&u,2);return (float)h;}
extern unsigned fragments[64][32][6];
// sum [16, 8] += a [16, 16] * b [16, 8]: a lane has rows lane/4 and lane/4+8 of a at the 2 elements
// lane%4 of each half, column lane/4 of b at the same elements, and of the sum rows lane/4 and
// lane/4+8 at columns lane%4*2 and the next. The elements add up exactly, then to the sum.
template<class F>static void emu_mma(float*sum,unsigned a0,unsigned a1,unsigned a2,unsigned a3,unsigned b0,unsigned b1,F widen){
unsigned w=emu_w(),l=emu_l(),mine[6]={a0,a1,a2,a3,b0,b1};memcpy(fragments[w][l],mine,sizeof mine);warpbar[w].wait(32);
for(int i=0;i<4;i++){unsigned row=l/4,column=l%4*2+i%2;double s=0;for(int t=0;t<4;t++)for(int half=0;half<2;half++)for(int e=0;e<2;e++){
unsigned a=fragments[w][row*4+t][half*2+i/2],b=fragments[w][column*4+t][4+half];s+=(double)widen((unsigned short)(a>>16*e))*(double)widen((unsigned short)(b>>16*e));}
sum[i]=(float)(sum[i]+s);}warpbar[w].wait(32);}
// Row lane%8 of matrix lane/8 is named by each lane; a lane gets elements lane%4*2 and the next of
// row lane/4 of each, or, transposed, of column lane/4.
void emu_matrices(unsigned*to,const void*row,bool transposed);
// Copies happen where they are waited for, so that a missing wait shows.
void emu_copy(void*to,const void*from,bool there);
void emu_group_copies();
void emu_groups_done_but(unsigned left);
void emu_copies_done();
static unsigned min(unsigned a,unsigned b){return a<b?a:b;}
static unsigned max(unsigned a,unsigned b){return a>b?a:b;}
// What lies at a place of this block, in another one of the cluster.
char*emu_there(char*here,unsigned block);
// A launch whose blocks wait for the kernels ahead of it, if it `waits`.
void emu_launch_body(bool waits,Dim3 grid,Dim3 block,unsigned cluster,size_t bytes,void (*body)(void*),void*of_body);
template<class F>static void emu_launch(bool waits,Dim3 grid,Dim3 block,unsigned cluster,size_t bytes,F body){emu_launch_body(waits,grid,block,cluster,bytes,[](void*f){(*(F*)f)();},&body);}
char*read_file(const char*n);
void write_file(const char*n,const char*p,long s);
