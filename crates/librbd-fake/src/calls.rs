//! Connections, pools, locks, watchers, as the library's header has them.
//!
//! UNSAFETY: the functions of a library in C. Handles are boxes that were given away and come back once, texts end
//! with a zero byte, and results go where the caller has room: what the header asks of a caller.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::cluster::{Cluster, address, beside, break_lock, id, number_of, owner, watchers};
use crate::requests::{Completion, Image, Job, Kind, Shared, held};

type Handle = *mut c_void;

/// A cluster, before and after its configuration is read.
struct Connection(Mutex<Arc<Cluster>>);

struct Pool {
    cluster: Arc<Cluster>,
    folder: Mutex<PathBuf>,
}

#[repr(C)]
struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

fn given<T>(value: T) -> Handle {
    Box::into_raw(Box::new(value)).cast()
}

/// # Safety
/// The handle is one that was given as this type, and has not come back.
unsafe fn of<'a, T>(handle: Handle) -> &'a T {
    // SAFETY: as the caller promises.
    unsafe { &*handle.cast::<T>() }
}

/// # Safety
/// As of [`of`], and nobody uses it any more.
unsafe fn back<T>(handle: Handle) -> T {
    // SAFETY: as the caller promises.
    *unsafe { Box::from_raw(handle.cast::<T>()) }
}

/// # Safety
/// The text ends with a zero byte.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn in_c(text: &str) -> *mut c_char {
    CString::new(text).unwrap_or_default().into_raw()
}

/// # Safety
/// The text was made by [`in_c`].
unsafe fn free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { CString::from_raw(text) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_create(cluster: *mut Handle, _user: *const c_char) -> c_int {
    // SAFETY: the caller has room for the result.
    unsafe { *cluster = given(Connection(Mutex::new(Arc::new(Cluster::new())))) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_conf_read_file(cluster: Handle, path: *const c_char) -> c_int {
    // SAFETY: the header asks for a cluster and a text.
    let (Connection(cluster), path) = unsafe { (of::<Connection>(cluster), text(path)) };
    let Ok(folder) = fs::read_to_string(path) else { return -libc::ENOENT };
    let mut cluster = held(cluster);
    let number = cluster.number;
    *cluster = Arc::new(Cluster { folder: PathBuf::from(folder.trim()), number });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_conf_set(
    _cluster: Handle,
    _option: *const c_char,
    _value: *const c_char,
) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_connect(cluster: Handle) -> c_int {
    // SAFETY: the header asks for a cluster.
    held(&unsafe { of::<Connection>(cluster) }.0).error("connect")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_getaddrs(cluster: Handle, addresses: *mut *mut c_char) -> c_int {
    // SAFETY: the header asks for a cluster and room for the result.
    unsafe { *addresses = in_c(&held(&of::<Connection>(cluster).0).address()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_buffer_free(buffer: *mut c_char) {
    // SAFETY: the only buffers are addresses.
    unsafe { free(buffer) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_blocklist_add(
    cluster: Handle,
    client: *mut c_char,
    seconds: u32,
) -> c_int {
    // SAFETY: the header asks for a cluster and a text.
    let (cluster, client) = unsafe { (held(&of::<Connection>(cluster).0).clone(), text(client)) };
    let file = cluster.folder.join(format!("blocklist-{}", number_of(&client)));
    fs::write(file, seconds.to_string()).map_or(-libc::EIO, |()| 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_shutdown(cluster: Handle) {
    // SAFETY: the caller does not use it any more.
    drop(unsafe { back::<Connection>(cluster) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_ioctx_create(
    cluster: Handle,
    pool: *const c_char,
    handle: *mut Handle,
) -> c_int {
    // SAFETY: the header asks for a cluster, a text and room for the result.
    let (cluster, pool) = unsafe { (held(&of::<Connection>(cluster).0).clone(), text(pool)) };
    let folder = cluster.folder.join(pool);
    if !folder.is_dir() {
        return -libc::ENOENT;
    }
    // SAFETY: as above.
    unsafe { *handle = given(Pool { cluster, folder: Mutex::new(folder) }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_ioctx_set_namespace(pool: Handle, namespace: *const c_char) {
    // SAFETY: the header asks for a pool and a text.
    let (pool, namespace) = unsafe { (of::<Pool>(pool), text(namespace)) };
    let mut folder = held(&pool.folder);
    *folder = folder.join(namespace);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_ioctx_destroy(pool: Handle) {
    // SAFETY: the caller does not use it any more.
    drop(unsafe { back::<Pool>(pool) });
}

/// `metadata_set` of Ceph's class `rbd` with one key, on the header of an image.
#[unsafe(no_mangle)]
unsafe extern "C" fn rados_exec(
    pool: Handle,
    header: *const c_char,
    _class: *const c_char,
    _method: *const c_char,
    input: *const c_char,
    bytes: usize,
    _output: *mut c_char,
    _room: usize,
) -> c_int {
    // SAFETY: the header asks for a pool, texts and so many bytes of input.
    let (pool, header, input) = unsafe {
        (of::<Pool>(pool), text(header), std::slice::from_raw_parts(input.cast::<u8>(), bytes))
    };
    if pool.cluster.is_refused() {
        return -libc::ESHUTDOWN;
    }
    let taken = |from: usize| {
        let bytes = input.get(from..from + 4)?.try_into().ok().map(u32::from_le_bytes)? as usize;
        input.get(from + 4..from + 4 + bytes)
    };
    let Some(key) = taken(4) else { return -libc::EINVAL };
    let Some(value) = taken(8 + key.len()) else { return -libc::EINVAL };
    let is_image = |path: &PathBuf| id(path).is_some_and(|id| header == format!("rbd_header.{id}"));
    let entries = fs::read_dir(&*held(&pool.folder)).into_iter().flatten().flatten();
    let Some(image) = entries.map(|entry| entry.path()).find(is_image) else {
        return -libc::ENOENT;
    };
    let key = String::from_utf8_lossy(key);
    let written = fs::write(beside(&image, &format!("meta-{key}")), value);
    if written.is_ok() { 0 } else { -libc::EIO }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_namespace_exists(
    pool: Handle,
    namespace: *const c_char,
    is_there: *mut bool,
) -> c_int {
    // SAFETY: the header asks for a pool, a text and room for the result.
    unsafe { *is_there = held(&of::<Pool>(pool).folder).join(text(namespace)).is_dir() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_open(
    pool: Handle,
    name: *const c_char,
    image: *mut Handle,
    _snapshot: *const c_char,
) -> c_int {
    // SAFETY: the header asks for a pool and a text.
    let (pool, name) = unsafe { (of::<Pool>(pool), text(name)) };
    pool.cluster.wait_while("silent");
    if pool.cluster.error("open") < 0 {
        return pool.cluster.error("open");
    }
    let path = held(&pool.folder).join(name);
    let Ok(file) = File::options().read(true).write(true).open(&path) else {
        return -libc::ENOENT;
    };
    let _ = File::create(beside(&path, &format!("watch-{}", pool.cluster.number)));
    let shared = Shared {
        cluster: pool.cluster.clone(),
        path,
        file,
        event: Mutex::new(-1),
        ended: Mutex::default(),
        watch: Mutex::default(),
    };
    // SAFETY: the header asks for room for the result.
    unsafe { *image = given(Image::open(shared)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_close(image: Handle) -> c_int {
    // SAFETY: the caller does not use it any more.
    let image = unsafe { back::<Image>(image) };
    let shared = image.shared.clone();
    image.close();
    let own = shared.cluster.address();
    if owner(&shared.path) == Some(own) {
        let _ = fs::remove_file(beside(&shared.path, "lock"));
    }
    let _ = fs::remove_file(beside(&shared.path, &format!("watch-{}", shared.cluster.number)));
    0
}

/// # Safety
/// The handle is an image's.
unsafe fn shared<'a>(image: Handle) -> &'a Shared {
    // SAFETY: as the caller promises.
    &unsafe { of::<Image>(image) }.shared
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_size(image: Handle, size: *mut u64) -> c_int {
    // SAFETY: the header asks for an image.
    let shared = unsafe { shared(image) };
    if shared.cluster.is_refused() {
        return -libc::ESHUTDOWN;
    }
    let Some(bytes) = shared.size() else { return -libc::ENOENT };
    // SAFETY: the header asks for room for the result.
    unsafe { *size = bytes };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_features(image: Handle, features: *mut u64) -> c_int {
    // SAFETY: the header asks for an image and room for the result.
    unsafe {
        let text = fs::read_to_string(beside(&shared(image).path, "features"));
        *features = text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0b11_1101);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_id(image: Handle, into: *mut c_char, room: usize) -> c_int {
    // SAFETY: the header asks for an image.
    let id = id(&unsafe { shared(image) }.path).unwrap_or_default();
    if id.len() + 1 > room {
        return -libc::ERANGE;
    }
    // SAFETY: there is room for so many bytes.
    unsafe {
        into.cast::<u8>().copy_from(id.as_ptr(), id.len());
        *into.add(id.len()) = 0;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_metadata_get(
    image: Handle,
    key: *const c_char,
    into: *mut c_char,
    room: *mut usize,
) -> c_int {
    // SAFETY: the header asks for an image and a text.
    let (shared, key) = unsafe { (shared(image), text(key)) };
    let Ok(value) = fs::read(beside(&shared.path, &format!("meta-{key}"))) else {
        return -libc::ENOENT;
    };
    // SAFETY: the header asks for room for so many bytes.
    unsafe {
        if value.len() + 1 > *room {
            return -libc::ERANGE;
        }
        into.cast::<u8>().copy_from(value.as_ptr(), value.len());
        *into.add(value.len()) = 0;
        *room = value.len() + 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_read(image: Handle, at: u64, bytes: usize, into: *mut c_char) -> isize {
    use std::os::unix::fs::FileExt;
    // SAFETY: the header asks for an image and room for so many bytes.
    let (shared, into) =
        unsafe { (shared(image), std::slice::from_raw_parts_mut(into.cast::<u8>(), bytes)) };
    shared.cluster.wait_while("hang");
    shared.file.read_at(into, at).map_or(-(libc::EIO as isize), |bytes| bytes as isize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_lock_acquire(image: Handle, _mode: c_int) -> c_int {
    // SAFETY: the header asks for an image.
    let shared = unsafe { shared(image) };
    let (cluster, path) = (&shared.cluster, &shared.path);
    if cluster.error("acquire") < 0 {
        return cluster.error("acquire");
    }
    if cluster.is_refused() {
        return -libc::ESHUTDOWN;
    }
    if let Some(owner) = owner(path) {
        if watchers(path).contains(&number_of(&owner)) {
            return -libc::EROFS;
        }
        break_lock(&cluster.folder, path, &owner);
    }
    fs::write(beside(path, "lock"), cluster.address()).map_or(-libc::EIO, |()| 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_lock_get_owners(
    image: Handle,
    _mode: *mut c_int,
    owners: *mut *mut c_char,
    count: *mut usize,
) -> c_int {
    // SAFETY: the header asks for an image and room for as many as the count says: at least one.
    unsafe {
        *count = match owner(&shared(image).path) {
            Some(owner) => {
                *owners = in_c(&owner);
                1
            }
            None => 0,
        };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_lock_get_owners_cleanup(owners: *mut *mut c_char, count: usize) {
    for place in 0..count {
        // SAFETY: the caller gives back what it got.
        unsafe { free(*owners.add(place)) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_lock_break(image: Handle, _mode: c_int, owner: *const c_char) -> c_int {
    // SAFETY: the header asks for an image and a text.
    let (shared, owner) = unsafe { (shared(image), text(owner)) };
    break_lock(&shared.cluster.folder, &shared.path, &owner);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_is_exclusive_lock_owner(image: Handle, is_owner: *mut c_int) -> c_int {
    // SAFETY: the header asks for an image and room for the result.
    unsafe {
        let shared = shared(image);
        *is_owner = c_int::from(owner(&shared.path) == Some(shared.cluster.address()));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_watchers_list(
    image: Handle,
    into: *mut Watcher,
    count: *mut usize,
) -> c_int {
    // SAFETY: the header asks for an image and room for as many as the count says.
    unsafe {
        let found = watchers(&shared(image).path);
        for (place, number) in found.iter().take(*count).enumerate() {
            let watcher =
                Watcher { address: in_c(&address(*number)), id: *number as i64, cookie: 1 };
            into.add(place).write(watcher);
        }
        *count = found.len().min(*count);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_watchers_list_cleanup(watchers: *mut Watcher, count: usize) {
    for place in 0..count {
        // SAFETY: the caller gives back what it got.
        unsafe { free((*watchers.add(place)).address) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_update_watch(
    image: Handle,
    watch: *mut u64,
    tell: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the header asks for an image and room for the result.
    unsafe {
        *held(&shared(image).watch) = Some((tell, argument as usize));
        *watch = 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_update_unwatch(image: Handle, _watch: u64) -> c_int {
    // SAFETY: the header asks for an image.
    *held(&unsafe { shared(image) }.watch) = None;
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_set_image_notification(image: Handle, fd: c_int, _kind: c_int) -> c_int {
    // SAFETY: the header asks for an image.
    *held(&unsafe { shared(image) }.event) = fd;
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_poll_io_events(image: Handle, into: *mut Handle, most: c_int) -> c_int {
    // SAFETY: the header asks for an image.
    let mut ended = held(&unsafe { shared(image) }.ended);
    let count = ended.len().min(most as usize);
    for (place, completion) in ended.drain(..count).enumerate() {
        // SAFETY: the header asks for room for so many.
        unsafe { *into.add(place) = completion.0.cast() };
    }
    count as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_create_completion(
    argument: *mut c_void,
    _call: Option<unsafe extern "C" fn(Handle, *mut c_void)>,
    completion: *mut Handle,
) -> c_int {
    // SAFETY: the header asks for room for the result.
    unsafe { *completion = given(Completion { argument, value: 0 }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_get_return_value(completion: Handle) -> isize {
    // SAFETY: the header asks for a completion.
    unsafe { of::<Completion>(completion) }.value
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_get_arg(completion: Handle) -> *mut c_void {
    // SAFETY: the header asks for a completion.
    unsafe { of::<Completion>(completion) }.argument
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_release(completion: Handle) {
    // SAFETY: the caller does not use it any more.
    let Completion { .. } = unsafe { back::<Completion>(completion) };
}

/// # Safety
/// The handle is an image's, and the job what the header asks for.
unsafe fn begin(image: Handle, job: Job) -> c_int {
    // SAFETY: as the caller promises.
    let jobs = unsafe { of::<Image>(image) }.jobs.as_ref();
    match jobs.map(|jobs| jobs.send(job)) {
        Some(Ok(())) => 0,
        _ => -libc::EINVAL,
    }
}

fn job(kind: Kind, at: u64, bytes: u64, completion: Handle) -> Job {
    let completion = completion.cast();
    Job { kind, at, bytes, vectors: std::ptr::null(), count: 0, completion }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_readv(
    image: Handle,
    vectors: *const libc::iovec,
    count: c_int,
    at: u64,
    completion: Handle,
) -> c_int {
    let count = count as usize;
    // SAFETY: the header asks for this.
    unsafe { begin(image, Job { vectors, count, ..job(Kind::Read, at, 0, completion) }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_writev(
    image: Handle,
    vectors: *const libc::iovec,
    count: c_int,
    at: u64,
    completion: Handle,
) -> c_int {
    let count = count as usize;
    // SAFETY: the header asks for this.
    unsafe { begin(image, Job { vectors, count, ..job(Kind::Write, at, 0, completion) }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_flush(image: Handle, completion: Handle) -> c_int {
    // SAFETY: the header asks for this.
    unsafe { begin(image, job(Kind::Flush, 0, 0, completion)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_discard(
    image: Handle,
    at: u64,
    bytes: u64,
    completion: Handle,
) -> c_int {
    // SAFETY: the header asks for this.
    unsafe { begin(image, job(Kind::Discard, at, bytes, completion)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_write_zeroes(
    image: Handle,
    at: u64,
    bytes: usize,
    completion: Handle,
    _zero_flags: c_int,
    _op_flags: c_int,
) -> c_int {
    // SAFETY: the header asks for this.
    unsafe { begin(image, job(Kind::Zeroes, at, bytes as u64, completion)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_broken_shuts_its_owner_out() {
        let folder = std::env::temp_dir().join(format!("voltier-fake-{}", std::process::id()));
        fs::create_dir_all(folder.join("pool")).unwrap();
        let (image, cluster) = (folder.join("pool/image"), Cluster::new());
        let cluster = Cluster { folder: folder.clone(), ..cluster };
        fs::write(beside(&image, "lock"), cluster.address()).unwrap();
        assert_eq!(owner(&image), Some(cluster.address()));
        assert!(!cluster.is_refused());
        break_lock(&folder, &image, &cluster.address());
        assert!(cluster.is_refused() && owner(&image).is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
