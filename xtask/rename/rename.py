#!/usr/bin/env python3
# Renames Rust types and modules by resolved definition, from the rules in rules.txt. Deleted when the renames are done.
"""Renames Rust types and modules by resolved definition. usage: rename.py ROOT RULES [--apply]
RULES lines: `type CRATE/FILE.rs Old New`, `file CRATE/old/path.rs new/path.rs` (module file move inside src), `word GLOB old new` (identifier in code, by file glob)."""
import re,sys,os,subprocess,fnmatch,collections
root=sys.argv[1]; rules=[l.split('#')[0].split() for l in open(sys.argv[2])]; rules=[r for r in rules if r]
apply='--apply' in sys.argv
os.chdir(root)
files=[f for f in subprocess.check_output(['git','ls-files','*.rs'],text=True).split() if os.path.exists(f)]
TOK=re.compile(r'''(?P<c>//[^\n]*|/\*.*?\*/)|(?P<s>b?r(?P<h>\#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*")|(?P<ch>b?'(?:\\.|[^'\\])')|(?P<l>'[A-Za-z_]\w*)|(?P<i>r\#\w+|[A-Za-z_]\w*)|(?P<w>\s+)|(?P<n>\d\w*(?:\.\d\w*)?)|(?P<p>::|.)''',re.S)
def tokenise(t):
    out=[]
    for m in TOK.finditer(t):
        out.append([m.lastgroup if m.lastgroup!='h' else 's',m.group()])
    return out
class Mod: pass
mods={} # (crate,segs tuple)->Mod
bycrate={}
def crate_of(f):
    p=f.split('/')
    if p[0]=='crates': c=p[1]
    elif p[0]=='tests': c=p[1]
    else: c=p[0]
    return c
def modpath(f):
    """(cratekey, segs). Each test target and the lib are separate crates."""
    p=f.split('/'); c=crate_of(f)
    i=None
    if 'src' in p:
        i=p.index('src'); base='/'.join(p[:i+1]); rest=p[i+1:]
        name=c.replace('-','_')
        if rest[0]=='bin': return ('bin:'+f,())
        if rest==['main.rs']:
            key=name if not os.path.exists(base+'/lib.rs') else name+':main'
            return (key,())
        if rest==['lib.rs']: return (name,())
        segs=rest[:-1]+[rest[-1][:-3]]
        return (name,tuple(segs))
    if 'tests' in p:
        i=len(p)-1-p[::-1].index('tests') if p[0]!='tests' else p.index('tests',1) if 'tests' in p[1:] else 0
        rest=p[i+1:]; pre='/'.join(p[:i+1])
        if len(rest)==1: return (pre+'/'+rest[0],())
        key=pre+'/'+rest[0]
        segs=rest[1:]
        if segs==['main.rs']: return (key,())
        return (key,tuple(segs[:-1]+[segs[-1][:-3]]))
    return (f,())
info={}
for f in files:
    t=open(f).read(); toks=tokenise(t)
    m=Mod(); m.f=f; m.toks=toks; m.crate,m.segs=modpath(f); m.defs={}; m.uses=[]; m.skip=set(); m.usepos={}
    mods[(m.crate,m.segs)]=m; info[f]=m
    code=[(k,x) for k,x in enumerate(toks) if x[0] not in('w','c')]
    n=len(code); depth=0; i=0
    enumstack=[]
    while i<n:
        k,(ty,tx)=code[i]
        if tx=='{': depth+=1
        elif tx=='}': depth-=1
        if ty=='i' and tx in('struct','enum','trait','type','union') and i+1<n and code[i+1][1][0]=='i':
            # associated types (inside impl/trait) look alike: only count when preceded by pub or at line start depth
            name=code[i+1][1][1]
            m.defs.setdefault(name,[]).append(code[i+1][0])
            if tx=='enum':
                j=i+2
                while j<n and code[j][1][1]!='{': j+=1
                d=0; expect=True
                while j<n:
                    x=code[j][1]
                    if x[1] in '{([': 
                        d+=1
                        if d==1 and x[1]=='{': expect=True
                    elif x[1] in '})]':
                        d-=1
                        if d==0: break
                    elif d==1 and x[1]==',': expect=True
                    elif d==1 and x[1]=='#': pass
                    elif d==1 and expect and x[0]=='i': m.skip.add(code[j][0]); expect=False
                    j+=1
        if ty=='i' and tx=='use':
            j=i+1
            def tree(j,prefix):
                path=list(prefix)
                while True:
                    ty2,tx2=code[j][1]
                    if tx2=='{':
                        j+=1
                        while code[j][1][1]!='}':
                            j=tree(j,path)
                            if code[j][1][1]==',': j+=1
                        return j+1
                    if tx2=='*': m.uses.append((path,'*',None)); return j+1
                    if ty2=='i':
                        path=path+[(code[j][0],tx2)]; j+=1
                        if code[j][1][1]=='::': j+=1; continue
                        alias=None
                        if code[j][1][1]=='as': alias=code[j+1][1][1]; j+=2
                        if path[-1][1]=='self' and len(path)>1: path=path[:-1]
                        m.uses.append((path,path[-1][1],alias)); return j
                    if tx2=='::': j+=1; continue
                    return j
            end=tree(j,[])
            for q in range(i,end): m.usepos[code[q][0]]=True
            i=end; continue
        i+=1
    m.code=code
def submod(m,name): return mods.get((m.crate,m.segs+(name,)))
def parent(m): return mods.get((m.crate,m.segs[:-1])) if m.segs else None
def rootmod(m): return mods.get((m.crate,()))
def resolve_mod(m,segs):
    """module for a list of names from inside m, or None"""
    cur=m
    for ix,s in enumerate(segs):
        if cur is None: return None
        if ix==0:
            if s=='crate': cur=rootmod(m); continue
            if s=='self': cur=m; continue
            if s=='super': cur=('super',m); 
            elif (s,()) in mods and submod(m,s) is None: cur=mods[(s,())]; continue
            else:
                nxt=submod(m,s)
                if nxt is None:
                    nxt=lookup_modimport(m,s)
                if nxt is None:
                    for path,n,alias in m.uses:
                        if n=='*' and [x for _,x in path]==['super'] and parent(m): nxt=submod(parent(m),s) or lookup_modimport(parent(m),s)
                cur=nxt; continue
        if isinstance(cur,tuple):
            if ix==0: continue
            # super from m: either parent, or (inline mod) m itself: try both
            base=cur[1]
            if s=='super': cur=('super',parent(base)) if parent(base) else None; continue
            p=parent(base)
            nxt=submod(base,s) or (p and submod(p,s))
            cur=nxt; continue
        nxt=submod(cur,s)
        if nxt is None: nxt=lookup_modimport(cur,s)
        cur=nxt
    return cur
def lookup_modimport(m,name,seen=None):
    for path,n,alias in m.uses:
        if (alias or n)==name and len(path)>=1 and n!='*':
            names=[x for _,x in path]
            if names==[name]: continue
            r=resolve_mod(m,names) if names!=[name] else None
            if r is not None and not isinstance(r,tuple): return r
    return None
def resolve_name(m,name,seen=None):
    """set of (file,name) definitions that `name` may mean in module m"""
    seen=seen or set()
    if m is None or (id(m),name) in seen: return set()
    seen.add((id(m),name))
    if name in m.defs: return {(m.f,name)}
    out=set()
    for path,n,alias in m.uses:
        if n!='*' and (alias or n)==name:
            names=[x for _,x in path]
            out|=resolve_path(m,names,seen)
    if out: return out
    for path,n,alias in m.uses:
        if n=='*':
            names=[x for _,x in path]
            r=resolve_mod(m,names)
            if isinstance(r,tuple): 
                p=parent(r[1]); 
                out|=resolve_name(p,name,seen) if p else set()
            elif r is not None and r is not m: out|=resolve_name(r,name,seen)
    return out
def resolve_path(m,names,seen=None):
    if len(names)==1: return resolve_name(m,names[0],seen)
    r=resolve_mod(m,names[:-1])
    if r is None: return set()
    if isinstance(r,tuple):
        p=parent(r[1]); o=resolve_name(r[1],names[-1],seen) if names[-1] in r[1].defs else set()
        return o or resolve_name(p,names[-1],seen) or resolve_name(r[1],names[-1],set())
    return resolve_name(r,names[-1],seen)
types={}
warn=[]
for r in rules:
    if r[0]=='type':
        f='crates/'+r[1].replace('/','/src/',1)
        if f not in info or r[2] not in info[f].defs: warn.append('no definition: '+' '.join(r)); continue
        types[(f,r[2])]=r[3]
names={n for _,n in types}
edits=0
def rep(m,k,defs):
    global edits
    new={types.get(d) for d in defs}
    if len(new)==1 and None not in new:
        m.toks[k][1]=new.pop(); edits+=1
    elif any(n for n in new): warn.append(f'{m.f}: ambiguous {m.toks[k][1]} {sorted(map(str,defs))}')
plan=[]
for f,m in info.items():
    if not any(n in open(f).read() for n in names): continue
    code=m.code
    # use statements
    for path,n,alias in m.uses:
        if n in names and n!='*':
            plan.append((m,path[-1][0],resolve_path(m,[x for _,x in path])))
        # a type in the middle of a use path (enum variants)
        for ix in range(0,len(path)-1):
            if path[ix][1] in names: plan.append((m,path[ix][0],resolve_path(m,[x for _,x in path[:ix+1]])))
    for i,(k,(ty,tx)) in enumerate(code):
        if ty!='i' or tx not in names or k in m.usepos: continue
        if k in m.skip: continue
        if k in m.defs.get(tx,[]):
            plan.append((m,k,{(f,tx)})); continue
        prev=code[i-1][1][1] if i else ''
        if prev=='.' and not (i>1 and code[i-2][1][1]=='.'): continue
        if i+2<len(code) and code[i+1][1][1]=='=' and code[i+2][1][1]=='>' and prev!='::': continue
        if prev=='::':
            segs=[]; j=i-1
            while j>0 and code[j][1][1]=='::' and code[j-1][1][0]=='i': segs.insert(0,code[j-1][1][1]); j-=2
            if not segs: continue
            if segs[0]=='Self': continue
            d=resolve_path(m,segs+[tx])
            if d: plan.append((m,k,d))
            continue
        d=resolve_name(m,tx)
        if d: plan.append((m,k,d))
    for i,(k,(ty,tx)) in enumerate(code):
        if ty=='s' and tx[1:-1] in names and i and code[i-1][1][1]=='=':
            d=resolve_name(m,tx[1:-1]); new={types.get(x) for x in d}
            if len(new)==1 and None not in new: plan.append((m,k,'"'+new.pop()+'"'))
    for k,(ty,tx) in enumerate(m.toks):
        if ty=='c':
            def cr(mm):
                segs=mm.group(1).split('::')
                if segs[0] in names and not (len(segs)==1 and False):
                    d=resolve_name(m,segs[0])
                    if not d: # unique in the crate?
                        c=[x for x in types if x[1]==segs[0] and info[x[0]].crate==m.crate]
                        d=set(c) if len(c)==1 else set()
                    new={types.get(x) for x in d}
                    if len(new)==1 and None not in new: return '`'+'::'.join([new.pop()]+segs[1:])+'`'
                elif segs[-1] in names:
                    d=resolve_path(m,segs); new={types.get(x) for x in d}
                    if len(new)==1 and None not in new: return '`'+'::'.join(segs[:-1]+[new.pop()])+'`'
                return mm.group(0)
            t2=re.sub(r'`([A-Za-z_][\w:]*)`',cr,tx)
            if t2!=tx: plan.append((m,k,t2))
seenk=set()
for m,k,d in plan:
    if (id(m),k) in seenk: continue
    seenk.add((id(m),k))
    if isinstance(d,str): m.toks[k][1]=d; edits+=1
    else: rep(m,k,d)
changed={f:''.join(x[1] for x in m.toks) for f,m in info.items()}
# word rules
for r in rules:
    if r[0]=='word':
        g,old,new=r[1:4]
        for f in files:
            if any(fnmatch.fnmatch(f,x) for x in g.split(',')):
                out=[]
                for ty,tx in tokenise(changed[f]):
                    if ty=='i' and tx==old: tx=new; edits+=1
                    elif ty=='c': tx=re.sub(r'`%s`'%re.escape(old),'`%s`'%new,tx)
                    out.append(tx)
                changed[f]=''.join(out)
moves=[]
for r in rules:
    if r[0]=='file':
        c,old=r[1].split('/',1); new=r[2]
        src=f'crates/{c}/src/'; 
        oldm=old[:-3].split('/'); newm=new[:-3].split('/')
        if src+old not in info: warn.append('no file '+src+old); continue
        moves.append((src,oldm,newm,c))
for src,oldm,newm,c in moves:
    os_,ns=oldm[-1],newm[-1]
    assert oldm[:-1]==newm[:-1],(oldm,newm)
    # declared in parent; path segments `os_::` within the crate where parent resolves: use token replace: `mod os_` in parent file, `os_` followed by `::` or in use groups in crate files
    par='/'.join(oldm[:-1])
    pf=[f'{src}{par}.rs'] if par else [src+'lib.rs',src+'main.rs']
    cr=(c.replace('-','_'))
    target=mods.get((cr,tuple(oldm)))
    for f in files:
        m=info[f]
        toks=tokenise(changed[f]); code=[(k,x) for k,x in enumerate(toks) if x[0] not in('w','c')]
        ch=False
        for i,(k,(ty,tx)) in enumerate(code):
            if ty!='i' or tx!=os_: continue
            prev=code[i-1][1][1] if i else ''; nxt=code[i+1][1][1] if i+1<len(code) else ''
            if prev=='mod' and f in pf: toks[k][1]=ns; ch=True; edits+=1; continue
            inuse=len(toks)==len(m.toks) and k in m.usepos
            if nxt=='::' or inuse:
                segs=[tx]; j=i
                # collect leading path; inside braces of a use we need the prefix from m.uses
                if prev=='::':
                    while j>0 and code[j-1][1][1]=='::' and code[j-2][1][0]=='i': segs.insert(0,code[j-2][1][1]); j-=2
                ok=False
                r=resolve_mod(m,segs)
                if r is target: ok=True
                else:
                    for path,n,alias in m.uses:
                        nm=[x for _,x in path]
                        for ix,x in enumerate(nm):
                            if x==os_ and resolve_mod(m,nm[:ix+1]) is target and (prev in('{',',') or nxt=='::'or True):
                                # same position in the token stream?
                                ok= ok or (path[ix][0]==k and len(toks)==len(m.toks))
                if ok: toks[k][1]=ns; ch=True; edits+=1
        if ch: changed[f]=''.join(x[1] for x in toks)
for w in sorted(set(warn)): print('WARN',w)
print('edits',edits)
if apply:
    for f,t in changed.items():
        if open(f).read()!=t: open(f,'w').write(t)
    for src,oldm,newm,c in moves:
        o,n=src+'/'.join(oldm),src+'/'.join(newm)
        subprocess.check_call(['git','mv',o+'.rs',n+'.rs'])
        if os.path.isdir(o): subprocess.check_call(['git','mv',o,n])
