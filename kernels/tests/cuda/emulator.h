// A block of CUDA threads on one host thread: each is a fiber that yields at barriers. Blocks run
// one after the other, those of a cluster in turn, each with its shared memory swapped in. Only what the generated kernels use is here; exited threads do not count
// at barriers, which generated kernels never ask for.
#include <ucontext.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <deque>
#include <vector>
#include <functional>

// Dynamic shared memory, and what nothing may write past the bytes that a launch has of it.
alignas(1024) static unsigned char emu_dynamic[1 << 18];
static void emu_guard(size_t bytes) { memset(emu_dynamic + bytes, 0x5c, sizeof emu_dynamic - bytes); }
static void emu_guarded(size_t bytes) {
  for (size_t i = bytes; i < sizeof emu_dynamic; ++i)
    if (emu_dynamic[i] != 0x5c) {
      fprintf(stderr, "shared memory written %zu bytes past its end\n", i - bytes);
      exit(3);
    }
}
struct Dim3{unsigned x,y,z;};
struct Fiber{ucontext_t c;Dim3 tid;bool done;char*stack;};
// What a block has for itself beside dynamic shared memory lies in a section of its own.
#define EMU_BLOCK __attribute__((section("emu_block")))
extern "C" char __start_emu_block[],__stop_emu_block[];
struct Image{std::vector<char> dynamic,statics;};
static std::vector<Image> images;
static unsigned emu_cluster=1,emu_rank;
static Fiber*emu_cur;static ucontext_t emu_main;static Dim3 blockIdx,blockDim,gridDim;
#define threadIdx (emu_cur->tid)
static void emu_yield(){swapcontext(&emu_cur->c,&emu_main);}
struct Bar{int arrived=0;unsigned gen=0;void wait(int n){unsigned g=gen;if(++arrived==n){arrived=0;gen++;}else while(gen==g)emu_yield();}};
EMU_BLOCK static Bar warpbar[64],blockbar,groupbar[64];
EMU_BLOCK static unsigned long long slots[64][32];
static Bar clusterbar;
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
static unsigned long long atomicAdd(unsigned long long*p,unsigned long long v){auto o=*p;*p+=v;return o;}
static unsigned short emu_bf16(float x){unsigned b=__float_as_uint(x);if((b&0x7fffffff)>0x7f800000)return 0x7fff;return (b+0x7fff+((b>>16)&1))>>16;}
static unsigned short emu_f16(float x){_Float16 h=(_Float16)x;unsigned short u;memcpy(&u,&h,2);return u;}
static float emu_unf16(unsigned short u){_Float16 h;memcpy(&h,&u,2);return (float)h;}
EMU_BLOCK static unsigned fragments[64][32][6];
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
static void emu_matrices(unsigned*to,const void*row,bool transposed){unsigned w=emu_w(),l=emu_l();slots[w][l]=(unsigned long long)row;warpbar[w].wait(32);
for(int m=0;m<4;m++){unsigned r=0;for(unsigned e=0;e<2;e++){unsigned at=l%4*2+e,line=transposed?at:l/4,column=transposed?l/4:at;r|=(unsigned)((const unsigned short*)slots[w][m*8+line])[column]<<16*e;}to[m]=r;}warpbar[w].wait(32);}
// Copies happen where they are waited for, so that a missing wait shows.
struct Copy{void*to;const void*from;bool there;};
// Groups of a thread, oldest first; the last one is open.
static std::deque<std::vector<Copy>> copies_of[8][1024];
#define copies copies_of[emu_rank]
static void emu_copy(const std::vector<Copy>&group){for(auto&c:group)if(c.there)memcpy(c.to,c.from,16);else memset(c.to,0,16);}
static void emu_group_copies(){copies[threadIdx.x].emplace_back();}
static void emu_groups_done_but(unsigned left){auto&mine=copies[threadIdx.x];while(mine.size()>left+1){emu_copy(mine.front());mine.pop_front();}}
static void emu_copies_done(){emu_group_copies();emu_groups_done_but(0);}
static unsigned min(unsigned a,unsigned b){return a<b?a:b;}
static unsigned max(unsigned a,unsigned b){return a>b?a:b;}
static std::function<void()> emu_body;
static void emu_entry(){emu_body();emu_cur->done=true;swapcontext(&emu_cur->c,&emu_main);}
static void emu_swap(unsigned rank,bool in){if(emu_cluster==1)return;auto&x=images[rank];size_t n=__stop_emu_block-__start_emu_block;
if(in){memcpy(emu_dynamic,x.dynamic.data(),x.dynamic.size());memcpy(__start_emu_block,x.statics.data(),n);}
else{memcpy(x.dynamic.data(),emu_dynamic,x.dynamic.size());memcpy(x.statics.data(),__start_emu_block,n);}}
// What lies at a place of this block, in another one of the cluster.
static char*emu_there(char*here,unsigned block){if(block==emu_rank)return here;if(block>=emu_cluster)abort();auto&x=images[block];
char*dynamic=(char*)emu_dynamic;return here>=dynamic&&here<dynamic+x.dynamic.size()?x.dynamic.data()+(here-dynamic):x.statics.data()+(here-__start_emu_block);}
static void emu_launch(Dim3 g,Dim3 b,unsigned cluster,size_t bytes,std::function<void()> f){emu_body=f;gridDim=g;blockDim=b;emu_cluster=cluster;std::vector<Fiber> fs(b.x*cluster);for(auto&x:fs)x.stack=(char*)malloc(1<<17);
for(unsigned z=0;z<g.z;z++)for(unsigned y=0;y<g.y;y++)for(unsigned x=0;x<g.x;x+=cluster){
for(auto&w:warpbar)w=Bar();for(auto&w:groupbar)w=Bar();blockbar=clusterbar=Bar();
images.assign(cluster,Image{std::vector<char>(emu_dynamic,emu_dynamic+bytes),std::vector<char>(__start_emu_block,__stop_emu_block)});
for(unsigned t=0;t<fs.size();t++){emu_rank=t/b.x;copies[t%b.x].assign(1,{});fs[t].tid={t%b.x,0,0};fs[t].done=false;getcontext(&fs[t].c);fs[t].c.uc_stack.ss_sp=fs[t].stack;fs[t].c.uc_stack.ss_size=1<<17;fs[t].c.uc_link=&emu_main;makecontext(&fs[t].c,emu_entry,0);}
long spins=0;for(bool any=true;any;){any=false;
for(emu_rank=0;emu_rank<cluster;emu_rank++){blockIdx={x+emu_rank,y,z};emu_swap(emu_rank,true);
for(unsigned t=0;t<b.x;t++){auto&q=fs[emu_rank*b.x+t];if(!q.done){any=true;emu_cur=&q;swapcontext(&emu_main,&q.c);}}emu_swap(emu_rank,false);}
if(++spins>5000000){fprintf(stderr,"deadlock\n");exit(3);}}}
for(auto&x:fs)free(x.stack);}
static char*read_file(const char*n){FILE*f=fopen(n,"rb");if(!f){fprintf(stderr,"no %s\n",n);exit(4);}fseek(f,0,SEEK_END);long s=ftell(f);rewind(f);char*p=(char*)aligned_alloc(256,(s+4096)/256*256+256);memset(p,0xff,(s+4096)/256*256+256);if(s&&fread(p,1,s,f)!=(size_t)s)exit(5);fclose(f);return p;}
static void write_file(const char*n,const char*p,long s){FILE*f=fopen(n,"wb");fwrite(p,1,s,f);fclose(f);}
