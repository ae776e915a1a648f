//! Tests of requests that look inside the node. `tests/control.rs` tests requests over sockets.

use crate::net::credentials::Credentials;
use crate::net::io;
use crate::net::server::BoundListener;
use crate::net::services::control_client::ControlClient;
use crate::node::Node;
use marline_core::controller::Config;
use marline_wire::v1;

#[test]
fn a_wait_whose_client_went_away_is_forgotten() {
    let node = Node::new();
    node.host_controller(Config::default());
    let (bound, address) = BoundListener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let _server = bound.listen(&node, Credentials::of(None, node.incarnation())).unwrap();
    io().block_on(async {
        let mut client = ControlClient::connect(format!("http://{address}")).await.unwrap();
        let submit = v1::SubmitTaskRequest { function: "never".into(), ..Default::default() };
        let task_id = client.submit_task(submit).await.unwrap().into_inner().task_id;
        let request = v1::WaitTasksRequest {
            task_ids: vec![task_id],
            timeout_ms: 60_000,
            ..Default::default()
        };
        let waiting = tokio::spawn(async move { client.wait_tasks(request).await });
        while node.waits_open() == 0 {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        while node.waits_open() > 0 {
            tokio::task::yield_now().await;
        }
    });
    node.close();
}
