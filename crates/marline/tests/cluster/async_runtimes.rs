//! Marline inside a user's own tokio runtime: calls that block the thread work there, and none
//! panics.

use crate::harness::{cluster, program, start_worker};
use marline::{Bytes, Client, Cluster, Controller, Error, Worker};
use tokio::runtime::{Builder, Runtime};

fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()]
        .map(|mut builder| builder.build().unwrap())
}

async fn use_everything(client: &Client) -> Result<(), Error> {
    assert_eq!(client.task("double").submit::<u64>((1_u64,))?.await?, 2);
    assert_eq!(client.task("double").submit::<u64>((2_u64,))?.wait()?, 4);
    let mut tasks = vec![client.task("double").submit::<u64>((3_u64,))?];
    client.wait(&mut tasks, 1, None)?;
    tasks[0].status()?;
    let counter = client.actor("Counter").name("one").create((40_u64,))?;
    assert_eq!(counter.call::<u64>("add", (1_u64,))?.await?, 41);
    assert_eq!(client.get_actor("default", "one")?.call::<u64>("add", (1_u64,))?.wait()?, 42);
    let large = client.put_bytes(vec![1; 1 << 20])?;
    assert_eq!(client.get::<Bytes>(&large)?.len(), 1 << 20);
    assert_eq!(client.task("sum").submit::<u64>((&large,))?.wait()?, 1 << 20);
    counter.delete()
}

#[test]
fn a_local_cluster_works_inside_a_tokio_runtime() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let cluster = Cluster::local(program()).unwrap();
            use_everything(&cluster.client()).await.unwrap();
        });
    }
}

#[test]
fn controllers_workers_and_clients_work_inside_a_tokio_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("socket").display());
    for runtime in runtimes() {
        for at in ["127.0.0.1:0", &socket] {
            runtime.block_on(async {
                let controller = Controller::listen(at).unwrap();
                let _worker = Worker::of(program()).threads().join(controller.address()).unwrap();
                let client = Client::connect(controller.address()).unwrap();
                use_everything(&client).await.unwrap();
                use_everything(&controller.client()).await.unwrap();
            });
        }
    }
}

#[test]
fn a_worker_runs_inside_a_tokio_runtime_until_sigterm() {
    let (controller, client) = cluster();
    let mut worker = start_worker(&controller, &["run", "tokio"]);
    assert_eq!(client.task("double").submit::<u64>((21_u64,)).unwrap().wait().unwrap(), 42);
    worker.signal("TERM");
    let status = worker.0.wait().unwrap();
    assert!(status.success(), "{status}");
}
