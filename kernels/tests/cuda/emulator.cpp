// What every emulated program has in common, compiled once for all of them.
#include "emulator.h"
#include <cstdio>
#include <cstdlib>
#include <csignal>
#include <deque>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

// Fibers switch without a system call, which ucontext makes for each: what a call keeps is pushed,
// and the stacks are swapped.
extern "C" void emu_switch(void**from,void*to);
asm(R"(.text
.globl emu_switch
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

alignas(1024) unsigned char emu_dynamic[1 << 18];
// NaN in what a launch has, too.
void emu_guard(size_t bytes) {
  memset(emu_dynamic, 0xff, bytes);
  memset(emu_dynamic + bytes, 0x5c, sizeof emu_dynamic - bytes);
}
void emu_guarded(size_t bytes) {
  for (size_t i = bytes; i < sizeof emu_dynamic; ++i)
    if (emu_dynamic[i] != 0x5c) {
      fprintf(stderr, "shared memory written %zu bytes past its end\n", i - bytes);
      exit(3);
    }
}
extern "C" char __start_emu_block[],__stop_emu_block[];
struct Image{std::vector<char> dynamic,statics;};
static std::vector<Image> images;
unsigned emu_cluster=1,emu_rank;
Fiber*emu_cur;Dim3 blockIdx,blockDim,gridDim;
static void*emu_main;
void emu_yield(){emu_switch(&emu_cur->sp,emu_main);}
void Bar::wait(int n){unsigned g=gen;emu_moves++;if(++arrived==n){arrived=0;gen++;}else while(gen==g)emu_yield();}
EMU_BLOCK Bar warpbar[64],blockbar,groupbar[64];
EMU_BLOCK unsigned long long slots[64][32];
EMU_BLOCK unsigned fragments[64][32][6];
Bar clusterbar;
void emu_matrices(unsigned*to,const void*row,bool transposed){unsigned w=emu_w(),l=emu_l();slots[w][l]=(unsigned long long)row;warpbar[w].wait(32);
for(int m=0;m<4;m++){unsigned r=0;for(unsigned e=0;e<2;e++){unsigned at=l%4*2+e,line=transposed?at:l/4,column=transposed?l/4:at;r|=(unsigned)((const unsigned short*)slots[w][m*8+line])[column]<<16*e;}to[m]=r;}warpbar[w].wait(32);}
unsigned long emu_moves;
struct Hidden{char*at;size_t bytes;const char*what;};
static std::vector<Hidden> hidden,parts;
static bool unseen;
static unsigned waiting;
static void emu_show(int access){for(auto&h:hidden)if(mprotect(h.at,h.bytes,access)!=0){perror("mprotect");exit(5);}unseen=access==PROT_NONE;}
static void emu_fault(int,siginfo_t*info,void*){const char*at=(const char*)info->si_addr;
for(auto&h:hidden)if(unseen&&at>=h.at&&at<h.at+h.bytes){fprintf(stderr,"%s is touched before the wait, by thread %u of block %u\n",h.what,emu_cur->tid.x,blockIdx.x);_exit(6);}
fprintf(stderr,"nothing is at %p\n",(const void*)at);_exit(6);}
static void emu_handle(){static char stack[1<<16];static bool is_set;if(is_set)return;is_set=true;
stack_t own={};own.ss_sp=stack;own.ss_size=sizeof stack;sigaltstack(&own,nullptr);
struct sigaction act={};act.sa_sigaction=emu_fault;act.sa_flags=SA_SIGINFO|SA_ONSTACK;sigaction(SIGSEGV,&act,nullptr);}
static size_t emu_pages(size_t bytes){return (bytes+4096)/4096*4096+4096;}
char*emu_memory(size_t bytes){char*p=(char*)aligned_alloc(4096,emu_pages(bytes));memset(p,0xff,emu_pages(bytes));return p;}
void emu_hide(char*at,size_t bytes,const char*what){emu_handle();hidden.push_back({at,emu_pages(bytes),what});}
void emu_hide_part(char*at,size_t bytes,const char*what){emu_handle();parts.push_back({at,bytes,what});
const size_t first=((size_t)at+4095)/4096*4096,end=((size_t)at+bytes)/4096*4096;
if(first<end)hidden.push_back({(char*)first,end-first,what});}
void emu_wait(){emu_moves++;waiting++;while(unseen)emu_yield();}
struct Copy{void*to;const void*from;bool there;};
// Groups of a thread, oldest first; the last one is open.
static std::deque<std::vector<Copy>> copies_of[8][1024];
#define copies copies_of[emu_rank]
void emu_copy(void*to,const void*from,bool there){const char*at=(const char*)from;
for(auto&h:parts)if(there&&unseen&&at+16>h.at&&at<h.at+h.bytes){fprintf(stderr,"%s is touched before the wait, by thread %u of block %u\n",h.what,threadIdx.x,blockIdx.x);_exit(6);}
if(there)(void)*(const volatile char*)from;copies[threadIdx.x].back().push_back({to,from,there});}
void emu_group_copies(){copies[threadIdx.x].emplace_back();}
static void emu_do(const std::vector<Copy>&group){for(auto&c:group)if(c.there)memcpy(c.to,c.from,16);else memset(c.to,0,16);}
void emu_groups_done_but(unsigned left){auto&mine=copies[threadIdx.x];while(mine.size()>left+1){emu_do(mine.front());mine.pop_front();}}
void emu_copies_done(){emu_group_copies();emu_groups_done_but(0);}
static void (*emu_body)(void*);static void*emu_of_body;
void emu_refuse(const char*what){fprintf(stderr,"%s, by thread %u of block %u\n",what,threadIdx.x,blockIdx.x);_exit(6);}
static void emu_entry(){emu_body(emu_of_body);emu_cur->done=true;emu_moves++;emu_switch(&emu_cur->sp,emu_main);abort();}
static void emu_swap(unsigned rank,bool in){if(emu_cluster==1)return;auto&x=images[rank];size_t n=__stop_emu_block-__start_emu_block;
if(in){memcpy(emu_dynamic,x.dynamic.data(),x.dynamic.size());memcpy(__start_emu_block,x.statics.data(),n);}
else{memcpy(x.dynamic.data(),emu_dynamic,x.dynamic.size());memcpy(x.statics.data(),__start_emu_block,n);}}
char*emu_there(char*here,unsigned block){if(block==emu_rank)return here;if(block>=emu_cluster)abort();auto&x=images[block];
char*dynamic=(char*)emu_dynamic;return here>=dynamic&&here<dynamic+x.dynamic.size()?x.dynamic.data()+(here-dynamic):x.statics.data()+(here-__start_emu_block);}
void emu_launch_body(bool waits,Dim3 g,Dim3 b,unsigned cluster,size_t bytes,void (*body)(void*),void*of_body){emu_body=body;emu_of_body=of_body;gridDim=g;blockDim=b;emu_cluster=cluster;
const size_t stack=1<<17;std::vector<Fiber> fs(b.x*cluster);for(auto&x:fs)x.stack=(char*)aligned_alloc(64,stack);
for(unsigned z=0;z<g.z;z++)for(unsigned y=0;y<g.y;y++)for(unsigned x=0;x<g.x;x+=cluster){
for(auto&w:warpbar)w=Bar();for(auto&w:groupbar)w=Bar();blockbar=clusterbar=Bar();
images.assign(cluster,Image{std::vector<char>(emu_dynamic,emu_dynamic+bytes),std::vector<char>(__start_emu_block,__stop_emu_block)});
for(unsigned t=0;t<fs.size();t++){emu_rank=t/b.x;copies[t%b.x].assign(1,{});fs[t].tid={t%b.x,0,0};fs[t].done=false;
// Its first switch pops six registers and returns to its entry, where a call would have left the
// stack 8 bytes past a multiple of 16.
void**sp=(void**)(fs[t].stack+stack-16);*sp=(void*)emu_entry;fs[t].sp=sp-6;}
emu_show(PROT_NONE);waiting=0;
long spins=0;for(bool any=true;any;){any=false;unsigned long moves=emu_moves;
for(emu_rank=0;emu_rank<cluster;emu_rank++){blockIdx={x+emu_rank,y,z};emu_swap(emu_rank,true);
for(unsigned t=0;t<b.x;t++){auto&q=fs[emu_rank*b.x+t];if(!q.done){any=true;emu_cur=&q;emu_switch(&emu_main,q.sp);}}emu_swap(emu_rank,false);}
if(unseen&&waiting&&moves==emu_moves)emu_show(PROT_READ|PROT_WRITE);
if(++spins>5000000){fprintf(stderr,"deadlock\n");exit(3);}}
emu_show(PROT_READ|PROT_WRITE);
if(waits&&!waiting){fprintf(stderr,"block %u ends without a wait\n",x);exit(6);}}
hidden.clear();parts.clear();for(auto&x:fs)free(x.stack);}
char*read_file(const char*n){FILE*f=fopen(n,"rb");if(!f){fprintf(stderr,"no %s\n",n);exit(4);}fseek(f,0,SEEK_END);long s=ftell(f);rewind(f);char*p=emu_memory(s);if(s&&fread(p,1,s,f)!=(size_t)s)exit(5);fclose(f);return p;}
void write_file(const char*n,const char*p,long s){FILE*f=fopen(n,"wb");fwrite(p,1,s,f);fclose(f);}
